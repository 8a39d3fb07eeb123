// Fused attention from sm_80 on: partials. The job that writes the last partial of a token merges them, in
// slot order.
#pragma once

#include "attention/merge.cuh"
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
template <int HeadDim, bool Special, typename T>
__device__ void merge_rows(const AttentionArguments &a, const int (&token)[kTogether],
                           const int (&head)[kTogether], int lane) {
    PartialRange range[kTogether];
    int most = 0;
#pragma unroll
    for (int r = 0; r < kTogether; ++r) {
        range[r] = a.partials[token[r]];
        most = max(most, range[r].count);
    }
    HeadResult<HeadDim> result[kTogether];
    for (int base = 0; base < most; base += 2) {
        float lse[kTogether][2], part[kTogether][2][HeadDim / 32];
#pragma unroll
        for (int r = 0; r < kTogether; ++r)
#pragma unroll
            for (int p = 0; p < 2; ++p) {
                const int slot = range[r].begin + min(base + p, range[r].count - 1);
                const int64_t index = static_cast<int64_t>(slot) * a.heads + head[r];
                lse[r][p] = base + p < range[r].count ? __ldcg(a.partial_lse + index) : -INFINITY;
                load_partial<HeadDim>(a, index, lane, part[r][p]);
            }
#pragma unroll
        for (int r = 0; r < kTogether; ++r) result[r].template add<false>(lse[r], part[r]);
    }
#pragma unroll
    for (int r = 0; r < kTogether; ++r) {
        result[r].template write<Special, T>(a, token[r], head[r], lane);
    }
}

// After all rows of a job are written: merges what this job completed.
template <int HeadDim, bool Special, typename T>
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
        merge_rows<HeadDim, Special, T>(a, token, head, threadIdx.x % 32);
    }
}

} // namespace batchllm::cuda::sm80
