// Fused attention, sm_90a: partials. Jobs write theirs, and one warp a CTA announces them. Every CTA has
// a share of the rows that are to be merged: one warp merges them as they become complete, and when
// both queues are empty the consumers help. A row is merged by one warp, in slot order, when the count
// of its token and KV head shows that all its partials are there.
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

// Waits for the consumers to be done with each job, announces its partials, gives its place back. One fence, of a
// microsecond or more, serves all jobs that are done by then.
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

// A row that this lane has counted as merged. The head merged last leaves its token's count zero for the
// next launch; the count comes back while the warp is at its next rows.
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

// Rows [row, row + Rows) of the merged tokens' heads, those below end; the loads of Rows * Batch partials
// are in flight together.
template <int HeadDim, bool Special, typename T, int Rows, int Batch>
__device__ void merge_rows(const AttentionArguments &a, int row, int end, int lane, Merged &last) {
    const int ratio = a.heads / a.kv_heads;
    int token[Rows], head[Rows];
    PartialRange range[Rows];
    int most = 0;
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
        const int index = row + r;
        token[r] = __ldg(a.merged + min(index, end - 1) / a.heads);
        head[r] = index % a.heads;
        const int2 there = __ldg(reinterpret_cast<const int2 *>(a.partials + token[r]));
        range[r] = {there.x, index < end ? there.y : 0};
        most = max(most, range[r].count);
    }
    auto arrivals = [&](int r) {
        return a.arrivals + static_cast<int64_t>(token[r]) * a.kv_heads + head[r] / ratio;
    };
    while (true) {
        bool ready = true;
#pragma unroll
        for (int r = 0; r < Rows; ++r) ready &= load_acquire(arrivals(r)) >= range[r].count;
        if (ready) break;
        __nanosleep(100);
    }
    HeadResult<HeadDim> result[Rows];
    for (int base = 0; base < most; base += Batch) {
        float lse[Rows][Batch], part[Rows][Batch][HeadDim / 32];
#pragma unroll
        for (int r = 0; r < Rows; ++r)
#pragma unroll
            for (int p = 0; p < Batch; ++p) {
                const int which = min(base + p, max(range[r].count, 1) - 1);
                const int64_t index =
                    static_cast<int64_t>(range[r].begin + which) * a.heads + head[r];
                lse[r][p] = __ldcg(a.partial_lse + index);
                load_partial<HeadDim>(a, index, lane, part[r][p]);
            }
#pragma unroll
        for (int r = 0; r < Rows; ++r) {
#pragma unroll
            for (int p = 0; p < Batch; ++p) {
                if (base + p >= range[r].count) lse[r][p] = -INFINITY;
            }
            result[r].template add<true>(lse[r], part[r]);
        }
    }
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
        if (range[r].count > 0) result[r].template write<Special, T>(a, token[r], head[r], lane);
    }
    __syncwarp();
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
        if (lane == r && range[r].count > 0) last.count(arrivals(r), range[r].count + ratio);
    }
}

// Takes units of the CTA's share until there are none. Background: the warp with few registers.
template <int HeadDim, bool Special, typename T, bool Background>
__device__ void merge_partials(const AttentionArguments &a, Rest *rest, int lane) {
    constexpr int kUnit = 4;                          // rows, if they are many
    constexpr int kTogether = HeadDim == 256 ? 1 : 2; // rows that few registers hold
    const int rows = a.merged_count * a.heads; // 32 bits: a 64-bit division is a function call
    // Few are merged more at a time, which by row they must not be.
    const bool many = a.by_row || rows > 2 * kConsumers / 32 * static_cast<int>(gridDim.x);
    if (Background && !many) return; // few rows wait for the last jobs, and many warps are quicker
    Merged last;
    while (true) {
        int next = 0;
        if (lane == 0) next = atomicAdd(&rest->merge_next, 1);
        next = __shfl_sync(~0u, next, 0);
        const int unit = static_cast<int>(blockIdx.x + next * gridDim.x);
        if (unit * (many ? kUnit : 1) >= rows) break;
        if constexpr (Background) {
            const int end = min((unit + 1) * kUnit, rows);
            for (int row = unit * kUnit; row < end; row += kTogether) {
                merge_rows<HeadDim, Special, T, kTogether, 2>(a, row, end, lane, last);
            }
        } else if (many) {
            merge_rows<HeadDim, Special, T, kUnit, 2>(a, unit * kUnit, rows, lane, last);
        } else {
            merge_rows<HeadDim, Special, T, 1, 8>(a, unit, rows, lane, last);
        }
    }
    last.finish();
}

} // namespace batchllm::cuda::sm90
