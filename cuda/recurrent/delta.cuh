// What kernels of delta nets share: the convolution and the gates of a token.
#pragma once

#include <type_traits>

#include "attention/mma.cuh"
#include "elementwise/element.cuh"
#include "recurrent/delta.h"

namespace batchllm::cuda {

// S: DeltaArguments::state's
template <typename S>
__device__ __forceinline__ S *state_of(const DeltaArguments &a, int slot, int head) {
    return reinterpret_cast<S *>(a.states + int64_t{slot} * a.slot_bytes) +
           int64_t{head} * a.key_dim * a.value_dim;
}

// Neighbouring columns of S as they are stored.
template <typename S> struct StateFour;
template <> struct StateFour<float> {
    using Raw = float4;
    static __device__ __forceinline__ float4 wide(Raw x) { return x; }
    static __device__ __forceinline__ Raw narrow(float4 x) { return x; }
};
template <> struct StateFour<__nv_bfloat16> {
    using Raw = uint2;
    static __device__ __forceinline__ float4 wide(Raw x) {
        const float2 low = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162 &>(x.x));
        const float2 high = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162 &>(x.y));
        return make_float4(low.x, low.y, high.x, high.y);
    }
    static __device__ __forceinline__ Raw narrow(float4 x) {
        return {pack(x.x, x.y, __nv_bfloat16()), pack(x.z, x.w, __nv_bfloat16())};
    }
};

__device__ __forceinline__ float2 load_state_pair(const float *from) {
    return *reinterpret_cast<const float2 *>(from);
}
__device__ __forceinline__ float2 load_state_pair(const __nv_bfloat16 *from) {
    return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162 *>(from));
}
__device__ __forceinline__ void store_state_pair(float *to, float x, float y) {
    *reinterpret_cast<float2 *>(to) = make_float2(x, y);
}
__device__ __forceinline__ void store_state_pair(__nv_bfloat16 *to, float x, float y) {
    *reinterpret_cast<uint32_t *>(to) = pack(x, y, __nv_bfloat16());
}

// Calls action with a value of the type of S.
template <typename Action> cudaError_t with_state(DType type, const Action &action) {
    if (type == DType::bf16) return action(__nv_bfloat16{});
    return type == DType::f32 ? action(float{}) : cudaErrorInvalidValue;
}

template <typename T> __device__ __forceinline__ T *ring_of(const DeltaArguments &a, int slot) {
    return reinterpret_cast<T *>(a.states + int64_t{slot} * a.slot_bytes + a.ring_begin());
}

template <typename T>
__device__ __forceinline__ const T *projected_of(const DeltaArguments &a, int64_t token) {
    return static_cast<const T *>(a.projected) + token * a.stride;
}

// The row of channels that the convolution sees `back` tokens before token t; any row where there is none.
template <typename T> __device__ __forceinline__ const T *
seen_row(const DeltaArguments &a, const StateItem &item, int t, int back) {
    const int at = t - back, position = item.position + at;
    if (at >= 0 || position < 0) {
        return projected_of<T>(a, int64_t{item.token_begin} + max(at, 0));
    }
    return ring_of<T>(a, item.from) + int64_t{position % kRing} * a.channels();
}

// What the convolution sees in a channel at token t of the item; t may be negative: one of the last tokens before it.
template <typename T> __device__ __forceinline__ T convolution_input(const DeltaArguments &a,
                                                                     const StateItem &item, int t,
                                                                     int channel) {
    if (t >= 0) return projected_of<T>(a, int64_t{item.token_begin} + t)[channel];
    const int position = item.position + t;
    if (position < 0) return from_float<T>(0.0f);
    return ring_of<T>(a, item.from)[position % kRing * a.channels() + channel];
}

__device__ __forceinline__ float silu(float x) {
    return x * reciprocal_approximate(1.0f + expf(-x));
}

// w: the channel's weights; inputs: of tokens t - 3 to t
template <typename T>
__device__ __forceinline__ float convolved(const float4 &w, const T (&inputs)[kRing]) {
    return silu(to_float(inputs[0]) * w.x + to_float(inputs[1]) * w.y + to_float(inputs[2]) * w.z +
                to_float(inputs[3]) * w.w);
}

__device__ __forceinline__ float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

struct DeltaGates {
    float log_decay, rate;
};

// rate and step: as they were projected; bias and decay: the head's of DeltaArguments::step and decay.
__device__ __forceinline__ DeltaGates gates_of(float rate, float step, float bias, float decay) {
    return {-expf(decay) * softplus(step + bias), reciprocal_approximate(1.0f + expf(-rate))};
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
    return x;
}

__device__ __forceinline__ void add_scaled(float4 *to, const float4 &x, float scale) {
    to->x = fmaf(x.x, scale, to->x), to->y = fmaf(x.y, scale, to->y);
    to->z = fmaf(x.z, scale, to->z), to->w = fmaf(x.w, scale, to->w);
}

// The most shared memory that a block may have.
inline cudaError_t most_shared(int *bytes) {
    int device = 0;
    const cudaError_t code = cudaGetDevice(&device);
    if (code != cudaSuccess) return code;
    return cudaDeviceGetAttribute(bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
}

// Four elements as memory has them.
template <typename T> struct Packed4 {
    using Bits = std::conditional_t<sizeof(T) == 4, uint4, uint2>;
    Bits bits;

    __device__ __forceinline__ T at(int e) const { return reinterpret_cast<const T *>(&bits)[e]; }
    __device__ __forceinline__ void set(int e, T x) { reinterpret_cast<T *>(&bits)[e] = x; }
};
template <typename T> __device__ __forceinline__ Packed4<T> load4_past_l1(const T *from) {
    return {__ldcg(reinterpret_cast<const typename Packed4<T>::Bits *>(from))};
}
template <typename T> __device__ __forceinline__ void store4(T *to, const Packed4<T> &four) {
    *reinterpret_cast<typename Packed4<T>::Bits *>(to) = four.bits;
}
template <typename T> __device__ __forceinline__ float4 widen(const Packed4<T> &x) {
    return make_float4(to_float(x.at(0)), to_float(x.at(1)), to_float(x.at(2)), to_float(x.at(3)));
}
template <typename T> __device__ __forceinline__ Packed4<T> narrow(const float4 &x) {
    Packed4<T> four;
    four.set(0, from_float<T>(x.x)), four.set(1, from_float<T>(x.y));
    four.set(2, from_float<T>(x.z)), four.set(3, from_float<T>(x.w));
    return four;
}

} // namespace batchllm::cuda
