// Fused attention, sm_90a: partials. Jobs write theirs, and one warp per CTA announces them. Every
// CTA has a share of the rows to merge: one warp merges them as they become complete, and once both
// queues are empty the consumers help. A row is merged by one warp, in slot order, once the count
// for its token and KV head shows that all its partials have been written.
#pragma once

#include "attention/merge.cuh"
#include "attention/sm90.cuh"

namespace batchllm::cuda::sm90 {

__device__ __forceinline__ void fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
__device__ __forceinline__ int load_acquire(const int *p) {
    int value;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
    return value;
}

// Waits until the consumers are done with each job, announces its partials, and releases its place.
// One fence, which takes a microsecond or more, serves all jobs that are done by then.
__device__ inline void signal_jobs(const AttentionArguments &a, Rest *rest) {
    const int lane = threadIdx.x % 32;
    Ring<kJobs> ring;
    while (true) {
        barrier_wait(shared_address(&rest->job_full[ring.slot]), ring.phase);
        if (rest->jobs[ring.slot].number < 0) break;
        barrier_wait(shared_address(&rest->job_done[ring.slot]), ring.phase);
        int done = 1, partial = rest->jobs[ring.slot].item.partial;
        for (auto next = ring; done < kJobs; ++done) {
            next.advance();
            const uint32_t barrier = shared_address(&rest->job_done[next.slot]);
            if (!__all_sync(~0u, barrier_test(barrier, next.phase))) break;
            partial |= rest->jobs[next.slot].item.partial;
        }
        if (partial) fence_gpu();
        for (; done > 0; --done) {
            const Job &job = rest->jobs[ring.slot];
            if (job.item.partial) {
                for (int i = lane; i < job.item.row_count; i += 32) {
                    if (job.slot[i] >= 0) {
                        atomicAdd(a.arrivals + static_cast<int64_t>(job.token[i]) * a.kv_heads +
                                      job.kv_head,
                                  1);
                    }
                }
            }
            __syncwarp();
            if (lane == 0) barrier_arrive(shared_address(&rest->job_empty[ring.slot]));
            ring.advance();
        }
    }
}

// A row that this lane has counted as merged. The head merged last resets its token's count to zero
// for the next launch; the count arrives while the warp works on its next rows.
struct Merged {
    int *arrivals = nullptr;
    int before, last;
    __device__ void count(int *at, int all) {
        finish();
        arrivals = at;
        last = all - 1;
        before = atomicAdd(at, 1);
    }
    __device__ void finish() {
        if (arrivals && before == last) *arrivals = 0;
        arrivals = nullptr;
    }
};

// A token's heads [first, end) that one warp merges.
struct MergeUnit {
    int token, first, end;
    PartialRange range;
};

// Waits until all partials of the unit's heads have been written.
__device__ __forceinline__ void wait_partials(const AttentionArguments &a, const MergeUnit &unit,
                                              int ratio) {
    const int *arrivals = a.arrivals + static_cast<int64_t>(unit.token) * a.kv_heads;
    const int last = (unit.end - 1) / ratio;
    for (int kv_head = unit.first / ratio; kv_head <= last; ++kv_head) {
        while (load_acquire(arrivals + kv_head) < unit.range.count) __nanosleep(100);
    }
}

// Merges them, with loads of Rows * Batch partials in flight together.
template <int HeadDim, bool Special, typename T, int Rows, int Batch> __device__ void
merge_heads(const AttentionArguments &a, const MergeUnit &unit, int ratio, int lane, Merged &last) {
    for (int first = unit.first; first < unit.end; first += Rows) {
        int64_t index[Rows]; // of each head's first partial
#pragma unroll
        for (int r = 0; r < Rows; ++r) {
            index[r] =
                static_cast<int64_t>(unit.range.begin) * a.heads + min(first + r, unit.end - 1);
        }
        HeadResult<HeadDim> result[Rows];
        for (int base = 0; base < unit.range.count; base += Batch) {
            float lse[Rows][Batch], part[Rows][Batch][HeadDim / 32];
#pragma unroll
            for (int r = 0; r < Rows; ++r)
#pragma unroll
                for (int p = 0; p < Batch; ++p) {
                    const int which = min(base + p, unit.range.count - 1);
                    const int64_t at = index[r] + static_cast<int64_t>(which) * a.heads;
                    lse[r][p] = __ldcg(a.partial_lse + at);
                    load_partial<HeadDim>(a, at, lane, part[r][p]);
                }
#pragma unroll
            for (int r = 0; r < Rows; ++r) {
#pragma unroll
                for (int p = 0; p < Batch; ++p) {
                    if (base + p >= unit.range.count) lse[r][p] = -INFINITY;
                }
                result[r].template add<true>(lse[r], part[r]);
            }
        }
#pragma unroll
        for (int r = 0; r < Rows; ++r) {
            if (first + r < unit.end) {
                result[r].template write<Special, T>(a, unit.token, first + r, lane);
            }
        }
    }
    __syncwarp();
    if (lane < unit.end - unit.first) {
        last.count(a.arrivals + static_cast<int64_t>(unit.token) * a.kv_heads +
                       (unit.first + lane) / ratio,
                   unit.range.count + ratio);
    }
}

// Takes units of the CTA's share until none are left. Background: the warp with few registers. It
// takes its units one ahead, so that what it needs first is loaded in the meantime. The consumers
// join at the end and share what is left.
template <int HeadDim, bool Special, typename T, bool Background>
__device__ void merge_partials(const AttentionArguments &a, Rest *rest, int lane) {
    constexpr int kUnit = 4;                          // heads per unit, if there are many rows
    constexpr int kTogether = HeadDim == 256 ? 1 : 2; // heads that fit in few registers
    const int rows = a.merged_count * a.heads; // 32 bits: a 64-bit division is a function call
    // If there are few rows, more loads are in flight; by row this must not depend on the number of
    // rows.
    const bool many = a.by_row || rows > 2 * kConsumers / 32 * static_cast<int>(gridDim.x);
    if (Background && !many) return; // few rows wait for the last jobs, where many warps are faster
    const int each = many ? kUnit : 1, of_token = (a.heads + each - 1) / each;
    const int ratio = a.heads / a.kv_heads;
    auto take = [&](MergeUnit *unit) { // false: none are left
        int next = 0;
        if (lane == 0) next = atomicAdd(&rest->merge_next, 1);
        next =
            __shfl_sync(~0u, next, 0) * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
        const int token = next / of_token;
        if (token >= a.merged_count) return false;
        unit->token = __ldg(a.merged + token);
        unit->first = (next - token * of_token) * each;
        unit->end = min(unit->first + each, a.heads);
        return true;
    };
    auto load_range = [&](MergeUnit *unit) {
        const int2 there = __ldg(reinterpret_cast<const int2 *>(a.partials + unit->token));
        unit->range = {there.x, there.y};
    };
    Merged last;
    MergeUnit unit, next;
    bool more = take(&unit);
    if (more) load_range(&unit);
    while (more) {
        if (Background) more = take(&next);
        wait_partials(a, unit, ratio);
        if constexpr (Background) {
            if (more) load_range(&next);
            merge_heads<HeadDim, Special, T, kTogether, 2>(a, unit, ratio, lane, last);
        } else if (many) {
            merge_heads<HeadDim, Special, T, kUnit, 2>(a, unit, ratio, lane, last);
        } else {
            merge_heads<HeadDim, Special, T, 1, 8>(a, unit, ratio, lane, last);
        }
        if (!Background) more = take(&next);
        if (!Background && more) load_range(&next);
        unit = next;
    }
    last.finish();
}

} // namespace batchllm::cuda::sm90
