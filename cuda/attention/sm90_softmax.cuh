// Fused attention, sm_90a: the online softmax of a thread's two rows over tile after tile of scores, in
// wgmma's accumulator layout: p = 2^(c s - base); O and the sum are relative to base. Most tiles
// leave base unchanged: it follows the scores in steps of at least 8, and a warp can tell from its
// threads' own maxima whether they have grown that much, without exchanging them.
#pragma once

#include "attention/common.cuh"

namespace batchllm::cuda::sm90 {

struct RowSoftmax {
    float c;
    bool by_row = false;                     // a row's base depends only on its own scores
    float base[2] = {0, 0};                  // a row's four threads have the same
    float limit[2] = {-INFINITY, -INFINITY}; // scores up to this need no other base; -inf: none yet
    float sum[2] = {0, 0};                   // of this thread's columns

    // Finds the maximum of the thread's scores in each row; true if the warp must raise().
    template <int Count>
    __device__ __forceinline__ bool grew(const float (&s)[Count], float (&top)[2]) const {
        constexpr int kChains = Count / 4 < 4 ? Count / 4 : 4;
        float chain[2][kChains];
#pragma unroll
        for (int j = 0; j < Count / 4; ++j) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float pair = fmaxf(s[4 * j + 2 * i], s[4 * j + 2 * i + 1]);
                chain[i][j % kChains] = j < kChains ? pair : fmaxf(chain[i][j % kChains], pair);
            }
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            top[i] = chain[i][0];
#pragma unroll
            for (int n = 1; n < kChains; ++n) top[i] = fmaxf(top[i], chain[i][n]);
        }
        return __any_sync(~0u, top[0] > limit[0] || top[1] > limit[1]);
    }
    // Raises the bases for those scores; sums so far must be multiplied by factor.
    __device__ __forceinline__ void raise(const float (&top)[2], float (&factor)[2]) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float higher = fmaxf(top[i], __shfl_xor_sync(~0u, top[i], 1));
            higher = fmaxf(higher, __shfl_xor_sync(~0u, higher, 2));
            const bool within = by_row && higher <= limit[i];
            higher *= c;
            factor[i] = 1;
            if (higher == -INFINITY || within) continue;
            if (limit[i] > -INFINITY) {
                higher = fmaxf(higher, base[i]);
                factor[i] = exp2_approximate(base[i] - higher);
            }
            base[i] = higher;
            limit[i] = __fdividef(higher + 8, c);
            sum[i] *= factor[i];
        }
    }
    // Computes P of a tile, as wgmma's operand.
    template <typename T, int Count> __device__ __forceinline__ void
    exponentials(const float (&s)[2 * Count], uint32_t (&p)[Count], T) {
        constexpr int kChains = Count / 2 < 2 ? Count / 2 : 2;
        float total[2][2 * kChains];
#pragma unroll
        for (int j = 0; j < Count / 2; ++j) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float x = exp2_approximate(s[4 * j + 2 * i] * c - base[i]);
                const float y = exp2_approximate(s[4 * j + 2 * i + 1] * c - base[i]);
                float *add = &total[i][j % kChains * 2];
                add[0] = j < kChains ? x : add[0] + x;
                add[1] = j < kChains ? y : add[1] + y;
                p[2 * j + i] = pack(x, y, T());
            }
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
            for (int n = 1; n < 2 * kChains; ++n) total[i][0] += total[i][n];
            sum[i] += total[i][0];
        }
    }
    __device__ __forceinline__ float maximum(int i) const { // the maximum that base represents
        return limit[i] > -INFINITY ? base[i] : -INFINITY;
    }
};

} // namespace batchllm::cuda::sm90
