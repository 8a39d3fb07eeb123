// A row held by a block's threads -> e4m3 and its scale, or scales of 128 elements each: the greatest of what
// a scale is of becomes 448, the greatest e4m3. A row with a NaN or an infinity has NaN in it afterwards.
#pragma once

#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include "elementwise/activation.cuh"
#include "elementwise/element.cuh"
#include "elementwise/elementwise.h"
#include "elementwise/norm.h"

namespace batchllm::cuda {

// The greatest of what is not negative over the block, in every thread. maxima: [32], shared, read and written
// by nothing else.
__device__ __forceinline__ float block_max(float x, unsigned *maxima) {
    // The bits of such floats are in the order of the floats.
    unsigned most = __reduce_max_sync(~0u, __float_as_uint(x));
    if (threadIdx.x % 32 == 0) maxima[threadIdx.x / 32] = most;
    __syncthreads();
    most = threadIdx.x % 32 < blockDim.x / 32 ? maxima[threadIdx.x % 32] : 0;
    return __uint_as_float(__reduce_max_sync(~0u, most));
}

// Of a row whose greatest is `most`; never so small that its inverse is infinite.
__device__ __forceinline__ float scale_of_row(float most) {
    return divided(fmaxf(most, 1e-30f), 448.0f);
}

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

// x: the thread's vectors of the row, as f32 or packed, vector v at (v * blockDim.x + threadIdx.x) * 8. All of
// the block call this. scales: of row `row` of all, as RowScales has them; thread 0 writes a row's, one thread
// each group's. maxima: as block_max has it.
template <typename Eight, int Vectors>
__device__ __forceinline__ void store_row_e4m3(const Eight (&x)[Vectors], int width,
                                               __nv_fp8_e4m3 *to, const RowScales &scales,
                                               int64_t row, unsigned *maxima) {
    const auto begin = [](int v) {
        return static_cast<int>(v * blockDim.x + threadIdx.x) * kVector;
    };
    float wide[8];
    if (scales.group_stride == 0) {
        float most = 0;
#pragma unroll
        for (int v = 0; v < Vectors; ++v) {
            if (begin(v) < width) most = fmaxf(most, greatest(x[v]));
        }
        const float scale = scale_of_row(block_max(most, maxima));
        if (threadIdx.x == 0) scales.data[row] = scale;
        const float inverse = __frcp_rn(scale);
#pragma unroll
        for (int v = 0; v < Vectors; ++v) {
            if (begin(v) >= width) break;
            widen(x[v], wide);
            store8_e4m3(to + begin(v), wide, inverse);
        }
        return;
    }
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
        const int i = begin(v);
        const float scale = scale_of_row(group_max(i < width ? greatest(x[v]) : 0.0f));
        if (i >= width) continue;
        if (i % kScaleGroup == 0) {
            scales.data[i / kScaleGroup * scales.group_stride + row * scales.row_stride] = scale;
        }
        widen(x[v], wide);
        store8_e4m3(to + i, wide, __frcp_rn(scale));
    }
}

} // namespace batchllm::cuda
