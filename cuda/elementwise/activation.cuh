// What lies between a feed-forward's products.
#pragma once

#include "model/model.h"

namespace batchllm::cuda {

template <Activation Kind> __device__ __forceinline__ float activated(float x) {
    if constexpr (Kind == Activation::silu) {
        return x / (1.0f + __expf(-x));
    } else if constexpr (Kind == Activation::gelu) {
        return 0.5f * x * (1.0f + erff(x * 0.70710678f));
    } else {
        return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
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
