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

} // namespace batchllm::cuda
