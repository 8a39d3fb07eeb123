// Fused attention from sm_80 on: partials. The job that writes the last partial of a token merges them, in
// slot order.
#pragma once

#include "attention/merge.cuh"
#include "attention/sm80.cuh"

namespace batchllm::cuda::sm80 {

// True if this was the token's last partial; leaves the count at zero for the next launch.
__device__ __forceinline__ bool last_partial(const AttentionArguments &a, int token, int kv_head) {
    int *arrivals = a.arrivals + static_cast<int64_t>(token) * a.kv_heads + kv_head;
    if (atomicAdd(arrivals, 1) != a.partials[token].count - 1) return false;
    *arrivals = 0;
    return true;
}

// How many rows a warp merges at once.
template <int HeadDim> constexpr int kTogether = HeadDim <= 256 ? 4 : 2;

// Merges the partials of Rows rows (a token's head each) in slot order, with two partials of each
// in flight. Run by one warp.
template <int HeadDim, bool Special, typename T, int Rows>
__device__ void merge_rows(const AttentionArguments &a, const int (&token)[Rows],
                           const int (&head)[Rows], int lane) {
    PartialRange range[Rows];
    int most = 0;
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
        range[r] = a.partials[token[r]];
        most = max(most, range[r].count);
    }
    HeadResult<HeadDim> result[Rows];
    for (int base = 0; base < most; base += 2) {
        float lse[Rows][2], part[Rows][2][HeadDim / 32];
#pragma unroll
        for (int r = 0; r < Rows; ++r)
#pragma unroll
            for (int p = 0; p < 2; ++p) {
                const int slot = range[r].begin + min(base + p, range[r].count - 1);
                const int64_t index = static_cast<int64_t>(slot) * a.heads + head[r];
                lse[r][p] = base + p < range[r].count ? __ldcg(a.partial_lse + index) : -INFINITY;
                load_partial<HeadDim>(a, index, lane, part[r][p]);
            }
#pragma unroll
        for (int r = 0; r < Rows; ++r) result[r].template add<false>(lse[r], part[r]);
    }
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
        result[r].template write<Special, T>(a, token[r], head[r], lane);
    }
}

// Called after all rows of a job are written: merges what this job completed.
template <int HeadDim, bool Special, typename T>
__device__ void merge_partials(const AttentionArguments &a, int kv_head, int ratio, Rest &rest) {
    using S = Shape<HeadDim>;
    constexpr int kRows = kTogether<HeadDim>;
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
    for (int i = threadIdx.x / 32 * kRows; i < count; i += S::kWarps * kRows) {
        int token[kRows], head[kRows];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            const int at = min(i + r, count - 1); // the last row again: the same result
            token[r] = rest.rows[rest.merge_list[at / ratio]].token;
            head[r] = kv_head * ratio + at % ratio;
        }
        merge_rows<HeadDim, Special, T>(a, token, head, threadIdx.x % 32);
    }
}

} // namespace batchllm::cuda::sm80
