// A row held by a block's threads -> e4m3 and its scale, or scales of 128 elements each: the greatest of what
// a scale is of becomes 448, the greatest e4m3. A row with a NaN or an infinity has NaN in it afterwards.
#pragma once

#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include "elementwise/norm.h"

namespace batchllm::cuda {

// The greatest over the block, in every thread. maxima: [32], shared.
__device__ __forceinline__ float block_max(float x, float *maxima) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, offset));
    __syncthreads(); // those of before have been read
    if (threadIdx.x % 32 == 0) maxima[threadIdx.x / 32] = x;
    __syncthreads();
    x = maxima[0];
    for (unsigned w = 1; w < blockDim.x / 32; ++w) x = fmaxf(x, maxima[w]);
    return x;
}

// Of a row whose greatest is `most`; never so small that its inverse is infinite.
__device__ __forceinline__ float scale_of_row(float most) { return fmaxf(most, 1e-30f) / 448.0f; }

__device__ __forceinline__ void store8_e4m3(__nv_fp8_e4m3 *to, const float (&x)[8], float inverse) {
    uint32_t words[2];
#pragma unroll
    for (int w = 0; w < 2; ++w) {
        words[w] = 0;
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
            const float2 two = {x[4 * w + 2 * pair] * inverse, x[4 * w + 2 * pair + 1] * inverse};
            const uint32_t bytes = __nv_cvt_float2_to_fp8x2(two, __NV_SATFINITE, __NV_E4M3);
            words[w] |= bytes << (16 * pair);
        }
    }
    *reinterpret_cast<uint2 *>(to) = {words[0], words[1]};
}

// The greatest of 128 elements, in the sixteen threads that hold eight each.
__device__ __forceinline__ float group_max(float x) {
#pragma unroll
    for (int offset = 8; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, offset));
    return x;
}

// x: the thread's vectors of the row, vector v at (v * blockDim.x + threadIdx.x) * 8. All of the block call
// this. scales: of row `row` of all, as RowScales has them; thread 0 writes a row's, one thread each group's.
template <int Vectors> __device__ __forceinline__ void store_row_e4m3(const float (&x)[Vectors][8],
                                                                      int width, __nv_fp8_e4m3 *to,
                                                                      const RowScales &scales,
                                                                      int64_t row, float *maxima) {
    float most[Vectors];
    float of_all = 0;
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
        most[v] = 0;
        if (static_cast<int>(v * blockDim.x + threadIdx.x) * 8 >= width) continue;
#pragma unroll
        for (int k = 0; k < 8; ++k) most[v] = fmaxf(most[v], fabsf(x[v][k]));
        of_all = fmaxf(of_all, most[v]);
    }
    float inverse = 0;
    if (scales.group_stride == 0) {
        const float scale = scale_of_row(block_max(of_all, maxima));
        if (threadIdx.x == 0) scales.data[row] = scale;
        inverse = 1.0f / scale;
    }
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
        const int i = static_cast<int>(v * blockDim.x + threadIdx.x) * 8;
        if (scales.group_stride != 0) {
            const float scale = scale_of_row(group_max(most[v]));
            inverse = 1.0f / scale;
            if (i < width && i % kScaleGroup == 0) {
                scales.data[i / kScaleGroup * scales.group_stride + row * scales.row_stride] =
                    scale;
            }
        }
        if (i < width) store8_e4m3(to + i, x[v], inverse);
    }
}

} // namespace batchllm::cuda
