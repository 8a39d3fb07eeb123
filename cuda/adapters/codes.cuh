// x in e4m3 -> 16 bits, in which its elements are exact.
#pragma once

#include <cstdint>

#include "attention/mma.cuh"

#include <cuda_fp8.h>

namespace batchllm::cuda {

template <typename T> __device__ __forceinline__ uint4 widened(uint2 codes) {
    uint32_t out[4];
    const uint32_t words[2] = {codes.x, codes.y};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const auto pair = static_cast<__nv_fp8x2_storage_t>(words[i / 2] >> (i % 2 * 16));
        const float2 v = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3)));
        out[i] = pack(v.x, v.y, T());
    }
    return {out[0], out[1], out[2], out[3]};
}

} // namespace batchllm::cuda
