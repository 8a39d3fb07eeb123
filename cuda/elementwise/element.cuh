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
    static __device__ float2 wide(type v) { // in two instructions; __bfloat1622float2 takes three
        const auto bits = *reinterpret_cast<const uint32_t *>(&v);
        return make_float2(__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u));
    }
    static __device__ type narrow(float a, float b) { return __floats2bfloat162_rn(a, b); }
};
template <> struct Pair<__half> {
    using type = __half2;
    static __device__ float2 wide(type v) { return __half22float2(v); }
    static __device__ type narrow(float a, float b) { return __floats2half2_rn(a, b); }
};

// Eight elements as memory has them: in 16 bits, half the registers that they take as f32.
template <typename T> struct Packed8 { uint4 bits; };
template <> struct Packed8<float> { float4 low, high; };

// What is read once and never again leaves the caches first.
template <typename T> __device__ __forceinline__ Packed8<T> load_once(const T *p) {
    return {__ldcs(reinterpret_cast<const uint4 *>(p))};
}
__device__ __forceinline__ Packed8<float> load_once(const float *p) {
    const auto *at = reinterpret_cast<const float4 *>(p);
    return {__ldcs(at), __ldcs(at + 1)};
}
// Past L1, which is left to what all rows read.
template <typename T> __device__ __forceinline__ Packed8<T> load_past_l1(const T *p) {
    return {__ldcg(reinterpret_cast<const uint4 *>(p))};
}
__device__ __forceinline__ Packed8<float> load_past_l1(const float *p) {
    const auto *at = reinterpret_cast<const float4 *>(p);
    return {__ldcg(at), __ldcg(at + 1)};
}

template <typename T> __device__ __forceinline__ void widen(const Packed8<T> &from, float (&x)[8]) {
    const auto *pairs = reinterpret_cast<const typename Pair<T>::type *>(&from.bits);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 f = Pair<T>::wide(pairs[i]);
        x[2 * i] = f.x, x[2 * i + 1] = f.y;
    }
}
__device__ __forceinline__ void widen(const float (&from)[8], float (&x)[8]) {
#pragma unroll
    for (int k = 0; k < 8; ++k) x[k] = from[k];
}
__device__ __forceinline__ void widen(const Packed8<float> &from, float (&x)[8]) {
    x[0] = from.low.x, x[1] = from.low.y, x[2] = from.low.z, x[3] = from.low.w;
    x[4] = from.high.x, x[5] = from.high.y, x[6] = from.high.z, x[7] = from.high.w;
}

// The greatest size of eight elements; NaNs do not count.
template <typename T> __device__ __forceinline__ float greatest(const Packed8<T> &x) {
    const auto *pairs = reinterpret_cast<const typename Pair<T>::type *>(&x.bits);
    const auto most = __hmax2(__hmax2(__habs2(pairs[0]), __habs2(pairs[1])),
                              __hmax2(__habs2(pairs[2]), __habs2(pairs[3])));
    const float2 two = Pair<T>::wide(most);
    return fmaxf(two.x, two.y);
}
__device__ __forceinline__ float greatest(const float (&x)[8]) {
    float most = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) most = fmaxf(most, fabsf(x[k]));
    return most;
}
__device__ __forceinline__ float greatest(const Packed8<float> &x) {
    float wide[8];
    widen(x, wide);
    return greatest(wide);
}

template <typename T> __device__ __forceinline__ void load8(const T *p, float (&x)[8]) {
    widen(Packed8<T>{*reinterpret_cast<const uint4 *>(p)}, x);
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

// Blocks of one pass over rows: x along a row, its vectors spread evenly; y a row, or more than one of them.
struct RowGrid {
    RowGrid(int64_t rows, int vectors) {
        const unsigned of_row = static_cast<unsigned>(std::max(1, (vectors + 255) / 256));
        threads = (static_cast<unsigned>(vectors) + of_row * 32 - 1) / (of_row * 32) * 32;
        blocks = dim3(of_row, static_cast<unsigned>(std::min<int64_t>(rows, 65535)));
    }
    dim3 blocks;
    unsigned threads;
};

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
