// What the attention kernels of every device share: the online softmax of a tile of scores in mma's
// accumulator layout, masks, and where a row's result goes.
#pragma once

#include <cmath>

#include "attention.h"
#include "mma.cuh"

namespace batchllm::cuda {

inline constexpr float kLog2e = 1.4426950408889634f;

__device__ __forceinline__ int tiles(int keys, int per_tile) {
    return (keys + per_tile - 1) / per_tile;
}

// Online softmax of one tile of scores: s holds row 0 at 4 j, 4 j + 1 and row 1 at 4 j + 2, 4 j + 3.
// A maximum is left as it is while the scores are at most `slack` above it: the factor is then 1.
template <int Count> __device__ __forceinline__ void softmax(float (&s)[Count], float (&maximum)[2],
                                                             float (&sum)[2], float (&factor)[2],
                                                             float c, float slack = 0) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        float top = maximum[i];
#pragma unroll
        for (int j = 0; j < Count / 4; ++j) {
            top = fmaxf(top, fmaxf(s[4 * j + 2 * i], s[4 * j + 2 * i + 1]));
        }
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        if (top - maximum[i] <= slack) top = maximum[i];
        const float base = top == -INFINITY ? 0.f : top * c;
        factor[i] = exp2_approximate(maximum[i] * c - base);
        maximum[i] = top;
        float total = 0;
#pragma unroll
        for (int j = 0; j < Count / 4; ++j) {
            s[4 * j + 2 * i] = exp2_approximate(s[4 * j + 2 * i] * c - base);
            s[4 * j + 2 * i + 1] = exp2_approximate(s[4 * j + 2 * i + 1] * c - base);
            total += s[4 * j + 2 * i] + s[4 * j + 2 * i + 1];
        }
        sum[i] = sum[i] * factor[i] + total;
    }
}

// Scores of keys that the row must not see become -inf. key: index in the stretch of s[0]'s column.
template <int Count> __device__ __forceinline__ void
mask(float (&s)[Count], const int (&position)[2], const KeyStretch &stretch, int key, int window) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        // Visible keys of the stretch: [low, high).
        const int high = min(stretch.keys, position[i] - stretch.start + 1);
        const int low = window > 0 ? position[i] - window + 1 - stretch.start : 0;
#pragma unroll
        for (int j = 0; j < Count / 4; ++j) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int k = key + j * 8 + e;
                if (k >= high || k < low) s[4 * j + 2 * i + e] = -INFINITY;
            }
        }
    }
}

// Whether some key of [key, key + count) of the stretch is hidden from some query of the item.
__device__ __forceinline__ bool masked(const AttentionItem &item, const KeyStretch &stretch,
                                       int key, int count, int window) {
    return key + count > stretch.keys || stretch.start + key + count - 1 > item.min_position ||
           (window > 0 && stretch.start + key <= item.max_position - window);
}

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

} // namespace batchllm::cuda
