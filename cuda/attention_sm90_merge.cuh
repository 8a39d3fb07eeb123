// Fused attention, sm_90a: partials. Jobs write theirs, one warp a CTA announces them, and when both
// queues are empty the consumers of all CTAs share out the rows to be merged. A row is merged by one
// warp, in slot order, when the count of its token and KV head shows that all its partials are there.
#pragma once

#include "attention_sm90.cuh"

namespace batchllm::cuda {

// Two neighbouring columns of one query row's result: to the output, or to its partial.
template <typename T>
__device__ __forceinline__ void write_pair(const AttentionArguments &a, int token, int slot,
                                           int head, int head_dim, int column, float x, float y) {
    if (slot < 0) {
        auto *out = static_cast<T *>(a.out) + token * a.out_stride + head * head_dim + column;
        *reinterpret_cast<uint32_t *>(out) = pack(x, y, T());
    } else {
        float *out =
            a.partial_out + (static_cast<int64_t>(slot) * a.heads + head) * head_dim + column;
        *reinterpret_cast<float2 *>(out) = make_float2(x, y);
    }
}
__device__ __forceinline__ void write_lse(const AttentionArguments &a, int slot, int head,
                                          float maximum, float sum) {
    if (slot < 0) return;
    a.partial_lse[static_cast<int64_t>(slot) * a.heads + head] =
        sum > 0 ? maximum + log2f(sum) : -INFINITY;
}

__device__ __forceinline__ void fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
__device__ __forceinline__ int load_acquire(const int *p) {
    int value;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
    return value;
}

// Waits for the consumers to be done with each job, announces its partials, gives its place back.
__device__ inline void signal_jobs(const AttentionArguments &a, Rest *rest) {
    const int lane = threadIdx.x % 32;
    Ring<kJobs> ring;
    while (true) {
        barrier_wait(shared_address(&rest->job_full[ring.slot]), ring.phase);
        const Job &job = rest->jobs[ring.slot];
        if (job.number < 0) break;
        barrier_wait(shared_address(&rest->job_done[ring.slot]), ring.phase);
        if (job.item.partial) {
            fence_gpu();
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

// Rows [unit * Rows, ...) of the merged tokens' heads, the loads of Rows * Batch partials in flight.
template <int HeadDim, typename T, int Rows, int Batch>
__device__ void merge_unit(const AttentionArguments &a, int64_t unit, int lane) {
    constexpr int kEach = HeadDim / 32;
    const int ratio = a.heads / a.kv_heads;
    const int64_t total = static_cast<int64_t>(a.merged_count) * a.heads;
    int token[Rows], head[Rows];
    PartialRange range[Rows];
    int most = 0;
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
        const int64_t index = unit * Rows + r;
        token[r] = __ldg(a.merged + min(index, total - 1) / a.heads);
        head[r] = static_cast<int>(index % a.heads);
        const int2 there = __ldg(reinterpret_cast<const int2 *>(a.partials + token[r]));
        range[r] = {there.x, index < total ? there.y : 0};
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
    float top[Rows], sum[Rows], o[Rows][kEach] = {};
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
        top[r] = -INFINITY;
        sum[r] = 0;
    }
    for (int base = 0; base < most; base += Batch) {
        float lse[Rows][Batch], part[Rows][Batch][kEach];
#pragma unroll
        for (int r = 0; r < Rows; ++r)
#pragma unroll
            for (int p = 0; p < Batch; ++p) {
                const int which = min(base + p, max(range[r].count, 1) - 1);
                const int64_t index =
                    static_cast<int64_t>(range[r].begin + which) * a.heads + head[r];
                lse[r][p] = __ldcg(a.partial_lse + index);
                const float *from = a.partial_out + index * HeadDim + lane * kEach;
                if constexpr (kEach == 2) {
                    const float2 v = __ldcg(reinterpret_cast<const float2 *>(from));
                    part[r][p][0] = v.x;
                    part[r][p][1] = v.y;
                } else {
#pragma unroll
                    for (int e = 0; e < kEach; e += 4) {
                        const float4 v = __ldcg(reinterpret_cast<const float4 *>(from + e));
                        part[r][p][e] = v.x;
                        part[r][p][e + 1] = v.y;
                        part[r][p][e + 2] = v.z;
                        part[r][p][e + 3] = v.w;
                    }
                }
            }
#pragma unroll
        for (int r = 0; r < Rows; ++r) {
            float higher = top[r];
#pragma unroll
            for (int p = 0; p < Batch; ++p) {
                if (base + p >= range[r].count) lse[r][p] = -INFINITY;
                higher = fmaxf(higher, lse[r][p]);
            }
            if (higher == -INFINITY) continue;
            const float old = exp2_approximate(top[r] - higher);
            top[r] = higher;
            sum[r] *= old;
#pragma unroll
            for (int e = 0; e < kEach; ++e) o[r][e] *= old;
#pragma unroll
            for (int p = 0; p < Batch; ++p) {
                if (lse[r][p] == -INFINITY) continue; // what an absent partial's place holds
                const float weight = exp2_approximate(lse[r][p] - higher);
                sum[r] += weight;
#pragma unroll
                for (int e = 0; e < kEach; ++e) o[r][e] += weight * part[r][p][e];
            }
        }
    }
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
        if (range[r].count == 0) continue;
        const float scale = sum[r] > 0 ? 1.f / sum[r] : 0.f;
        auto *out =
            static_cast<T *>(a.out) + token[r] * a.out_stride + head[r] * HeadDim + lane * kEach;
#pragma unroll
        for (int e = 0; e < kEach; e += 2) {
            *reinterpret_cast<uint32_t *>(out + e) =
                pack(o[r][e] * scale, o[r][e + 1] * scale, T());
        }
        // The head merged last leaves the count zero for the next launch.
        if (lane == 0 && atomicAdd(arrivals(r), 1) == range[r].count + ratio - 1) *arrivals(r) = 0;
    }
}

// warp: of all the consumers' warps of the grid.
template <int HeadDim, typename T>
__device__ void merge_partials(const AttentionArguments &a, int warp, int warps, int lane) {
    const int64_t rows = static_cast<int64_t>(a.merged_count) * a.heads;
    if (rows <= 2 * warps) {
        for (int64_t unit = warp; unit < rows; unit += warps) {
            merge_unit<HeadDim, T, 1, 8>(a, unit, lane);
        }
    } else {
        for (int64_t unit = warp; unit * 4 < rows; unit += warps) {
            merge_unit<HeadDim, T, 4, 2>(a, unit, lane);
        }
    }
}

} // namespace batchllm::cuda
