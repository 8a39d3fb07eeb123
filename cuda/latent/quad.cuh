// Rows of wgmma's accumulators, of which each of four neighbouring threads has pairs of columns.
#pragma once

#include <cstdint>

namespace batchllm::cuda {

// x[i] of lane j of four -> x[j] of lane i: with pairs of 2-byte columns of four blocks of 8 before, a thread then has the 8
// columns of one of the blocks.
__device__ __forceinline__ void transpose_in_quad(uint32_t (&x)[4]) {
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2) {
        const bool high = (threadIdx.x & bit) != 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (i & bit) continue;
            const uint32_t got = __shfl_xor_sync(~0u, high ? x[i] : x[i + bit], bit);
            if (high) {
                x[i] = got;
            } else {
                x[i + bit] = got;
            }
        }
    }
}

} // namespace batchllm::cuda
