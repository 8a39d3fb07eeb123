// Fused attention from sm_80 on: partials. The job that writes the last partial of a token merges them, in
// slot order.
#pragma once

#include "attention/sm80.cuh"

namespace batchllm::cuda::sm80 {

// True when this was the token's last partial; the count is left zero for the next launch.
__device__ __forceinline__ bool last_partial(const AttentionArguments &a, int token, int kv_head) {
    int *arrivals = a.arrivals + static_cast<int64_t>(token) * a.kv_heads + kv_head;
    if (atomicAdd(arrivals, 1) != a.partials[token].count - 1) return false;
    *arrivals = 0;
    return true;
}

constexpr int kTogether = 4; // rows that a warp merges at once

// A warp merges the partials of kTogether tokens' heads, in slot order, with two partials of each in
// flight.
template <int HeadDim, typename T>
__device__ void merge_rows(const AttentionArguments &a, const int (&token)[kTogether],
                           const int (&head)[kTogether], int lane) {
    constexpr int kEach = HeadDim / 32;
    PartialRange range[kTogether];
    float top[kTogether], total[kTogether], o[kTogether][kEach];
    int most = 0;
#pragma unroll
    for (int r = 0; r < kTogether; ++r) {
        range[r] = a.partials[token[r]];
        most = max(most, range[r].count);
        top[r] = -INFINITY;
        total[r] = 0;
#pragma unroll
        for (int e = 0; e < kEach; ++e) o[r][e] = 0;
    }
    for (int base = 0; base < most; base += 2) {
        float lse[kTogether][2], part[kTogether][2][kEach];
#pragma unroll
        for (int r = 0; r < kTogether; ++r)
#pragma unroll
            for (int p = 0; p < 2; ++p) {
                const int slot = range[r].begin + min(base + p, range[r].count - 1);
                const int64_t index = static_cast<int64_t>(slot) * a.heads + head[r];
                lse[r][p] = base + p < range[r].count ? __ldcg(a.partial_lse + index) : -INFINITY;
                const float *from = a.partial_out + index * HeadDim + lane * kEach;
#pragma unroll
                for (int e = 0; e < kEach; e += 2) {
                    const float2 pair = __ldcg(reinterpret_cast<const float2 *>(from + e));
                    part[r][p][e] = pair.x;
                    part[r][p][e + 1] = pair.y;
                }
            }
#pragma unroll
        for (int r = 0; r < kTogether; ++r) {
            const float higher = fmaxf(fmaxf(lse[r][0], lse[r][1]), top[r]);
            if (higher == -INFINITY) continue;
            const float old = exp2_approximate(top[r] - higher);
            top[r] = higher;
            total[r] *= old;
#pragma unroll
            for (int e = 0; e < kEach; ++e) o[r][e] *= old;
#pragma unroll
            for (int p = 0; p < 2; ++p) {
                const float weight = exp2_approximate(lse[r][p] - higher);
                total[r] += weight;
#pragma unroll
                for (int e = 0; e < kEach; ++e) o[r][e] += weight * part[r][p][e];
            }
        }
    }
#pragma unroll
    for (int r = 0; r < kTogether; ++r) {
        const float scale = total[r] > 0 ? 1.f / total[r] : 0.f;
        auto *out =
            static_cast<T *>(a.out) + token[r] * a.out_stride + head[r] * HeadDim + lane * kEach;
#pragma unroll
        for (int e = 0; e < kEach; e += 2) {
            *reinterpret_cast<uint32_t *>(out + e) =
                pack(o[r][e] * scale, o[r][e + 1] * scale, T());
        }
    }
}

// After all rows of a job are written: merges what this job completed.
template <int HeadDim, typename T>
__device__ void merge_partials(const AttentionArguments &a, int kv_head, int ratio, Rest &rest) {
    using S = Shape<HeadDim>;
    __threadfence();
    if (threadIdx.x == 0) rest.merge_count = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < rest.item.row_count; i += S::kThreads) {
        const AttentionRow row = rest.rows[i];
        if (row.slot >= 0 && last_partial(a, row.token, kv_head)) {
            rest.merge_list[atomicAdd(&rest.merge_count, 1)] = static_cast<uint8_t>(i);
        }
    }
    __threadfence();
    __syncthreads();
    const int count = rest.merge_count * ratio;
    for (int i = threadIdx.x / 32 * kTogether; i < count; i += S::kWarps * kTogether) {
        int token[kTogether], head[kTogether];
#pragma unroll
        for (int r = 0; r < kTogether; ++r) {
            const int at = min(i + r, count - 1); // the last row again: the same result
            token[r] = rest.rows[rest.merge_list[at / ratio]].token;
            head[r] = kv_head * ratio + at % ratio;
        }
        merge_rows<HeadDim, T>(a, token, head, threadIdx.x % 32);
    }
}

} // namespace batchllm::cuda::sm80
