// What kinds of norms, activations and routers there are: all that kernels need to know of a model's description
// (model/model.h).
#pragma once

#include <cstdint>

namespace batchllm {

enum class NormKind : uint8_t {
    none,
    rms,   // x / sqrt(mean(x^2) + epsilon) * (weight + offset)
    layer, // (x - mean(x)) / sqrt(variance(x) + epsilon) * (weight + offset) + bias
};

enum class Activation : uint8_t {
    silu,
    gelu,      // x * normal cumulative distribution function of x
    gelu_tanh, // its approximation with tanh
    // Instead of activation(gate) * up: g * sigmoid(1.702 g) * (u + 1), where g = min(gate, 7) and u = up clamped to
    // [-7, 7].
    clamped_swiglu,
    relu_squared, // max(x, 0)^2
};

enum class RouterKind : uint8_t {
    softmax, // over all experts' logits
    sigmoid, // of each logit
};

} // namespace batchllm
