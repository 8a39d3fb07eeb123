// For which feed-forwards, and from how many tokens on, the CUDA backend computes gate, up and
// activation in one launch (cuda/gated).
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "model/kinds.h"

namespace batchllm {

struct FeedForward; // model/model.h

// With fewer tokens, cuBLASLt's product and a launch for the activation are as fast.
inline constexpr int64_t least_gated_tokens = 1024;

// Whether there is such a product for an input of [columns] with gate and up of [width, columns].
constexpr bool takes_gated(DType element, Activation kind, int64_t columns, int64_t width) {
    return (element == DType::bf16 || element == DType::f16) &&
           kind != Activation::clamped_swiglu && kind != Activation::relu_squared &&
           kind != Activation::xielu && columns % 64 == 0 && width % 128 == 0;
}

bool takes_gated(DType element, const FeedForward &feed);

} // namespace batchllm
