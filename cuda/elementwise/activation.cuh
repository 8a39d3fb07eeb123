// What lies between a feed-forward's products.
#pragma once

#include "attention/mma.cuh"
#include "model/kinds.h"

namespace batchllm::cuda {

// x / d, d at least 1, rounded as division is (Markstein, "Computation of elementary functions on the IBM RISC System/6000
// processor", 1990), without the branch that division has for quotients beyond f32's range. Where x or d is
// beyond 2^126, x times d's approximate inverse.
__device__ __forceinline__ float divided(float x, float d) {
    const float approximate = reciprocal_approximate(d);
    const float inverse = fmaf(approximate, fmaf(-d, approximate, 1.0f), approximate);
    float quotient = x * inverse;
    quotient = fmaf(inverse, fmaf(-d, quotient, x), quotient);
    quotient = fmaf(inverse, fmaf(-d, quotient, x), quotient);
    return fmaxf(fabsf(x), d) < 0x1p126f ? quotient : x * approximate;
}

template <Activation Kind> __device__ __forceinline__ float activated(float x) {
    if constexpr (Kind == Activation::silu) {
        return divided(x, 1.0f + exp2_approximate(-kLog2e * x));
    } else if constexpr (Kind == Activation::gelu) {
        return 0.5f * x * (1.0f + erff(x * 0.70710678f));
    } else if constexpr (Kind == Activation::relu_squared) {
        const float positive = x < 0.0f ? 0.0f : x; // a NaN stays one
        return positive * positive;
    } else {
        return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
    }
}

// curve: of xielu, softplus(rise) and 1/2 + softplus(fall).
template <Activation Kind> __device__ __forceinline__ float activated(float x, float2 curve) {
    if constexpr (Kind == Activation::xielu) {
        const float p = x > 0.0f ? x : 0.0f, m = x < 0.0f ? x : 0.0f;
        return 0.5f * x + curve.y * (expm1f(m) - m) + curve.x * p * p;
    } else {
        return activated<Kind>(x);
    }
}
template <Activation Kind> __device__ __forceinline__ float2 curve_of(const float *numbers) {
    if constexpr (Kind != Activation::xielu) return {};
    return make_float2(log1pf(expf(numbers[0])), 0.5f + log1pf(expf(numbers[1])));
}

// Within a few units of the last place of f32: for what is rounded to few bits afterwards.
template <Activation Kind> __device__ __forceinline__ float quickly_activated(float x) {
    if constexpr (Kind == Activation::silu) {
        return silu_approximate(x);
    } else {
        return activated<Kind>(x);
    }
}

// Of a gate and what is beside it (model/model.h). A NaN stays one.
template <Activation Kind> __device__ __forceinline__ float gated(float gate, float up) {
    if constexpr (Kind == Activation::clamped_swiglu) {
        const float g = gate > 7.0f ? 7.0f : gate;
        const float u = up > 7.0f ? 7.0f : up < -7.0f ? -7.0f : up;
        return g / (1.0f + __expf(-1.702f * g)) * (u + 1.0f);
    } else {
        return activated<Kind>(gate) * up;
    }
}

} // namespace batchllm::cuda
