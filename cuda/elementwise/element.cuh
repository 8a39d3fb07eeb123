// Eight elements at a time, as f32; and what launchers share.
#pragma once

#include <algorithm>
#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "base/dtype.h"

namespace batchllm::cuda {

__device__ __forceinline__ void load8(const float *p, float (&x)[8]) {
    const float4 a = reinterpret_cast<const float4 *>(p)[0];
    const float4 b = reinterpret_cast<const float4 *>(p)[1];
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
    x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}
__device__ __forceinline__ void store8(float *p, const float (&x)[8]) {
    reinterpret_cast<float4 *>(p)[0] = make_float4(x[0], x[1], x[2], x[3]);
    reinterpret_cast<float4 *>(p)[1] = make_float4(x[4], x[5], x[6], x[7]);
}

template <typename T> struct Pair;
template <> struct Pair<__nv_bfloat16> {
    using type = __nv_bfloat162;
    static __device__ float2 wide(type v) { return __bfloat1622float2(v); }
    static __device__ type narrow(float a, float b) { return __floats2bfloat162_rn(a, b); }
};
template <> struct Pair<__half> {
    using type = __half2;
    static __device__ float2 wide(type v) { return __half22float2(v); }
    static __device__ type narrow(float a, float b) { return __floats2half2_rn(a, b); }
};

template <typename T> __device__ __forceinline__ void load8(const T *p, float (&x)[8]) {
    uint4 raw = *reinterpret_cast<const uint4 *>(p);
    const auto *pairs = reinterpret_cast<const typename Pair<T>::type *>(&raw);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 f = Pair<T>::wide(pairs[i]);
        x[2 * i] = f.x, x[2 * i + 1] = f.y;
    }
}
template <typename T> __device__ __forceinline__ void store8(T *p, const float (&x)[8]) {
    uint4 raw;
    auto *pairs = reinterpret_cast<typename Pair<T>::type *>(&raw);
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = Pair<T>::narrow(x[2 * i], x[2 * i + 1]);
    *reinterpret_cast<uint4 *>(p) = raw;
}

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
template <typename T> __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }
template <> __device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
    return __float2bfloat16_rn(x);
}
template <> __device__ __forceinline__ __half from_float<__half>(float x) {
    return __float2half_rn(x);
}

// Blocks for so much work, an item a thread, or some of it where a kernel's threads go on.
inline unsigned grid_for(int64_t work, int threads) {
    return static_cast<unsigned>(std::clamp<int64_t>((work + threads - 1) / threads, 1, 1 << 20));
}

// Calls action with a value of the type.
template <typename Action> cudaError_t with_type(DType type, const Action &action) {
    switch (type) {
    case DType::f32:
        return action(float{});
    case DType::bf16:
        return action(__nv_bfloat16{});
    case DType::f16:
        return action(__half{});
    case DType::e4m3: // stored alone, never computed with
    case DType::u4:
        break;
    }
    return cudaErrorInvalidValue;
}

} // namespace batchllm::cuda
