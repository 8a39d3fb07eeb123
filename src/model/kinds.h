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
    // x / 2 + (1/2 + softplus(fall)) (e^m - 1 - m) + softplus(rise) p^2, where p = max(x, 0), m = min(x, 0) and the two
    // numbers are in the checkpoint.
    xielu,
};

enum class RouterKind : uint8_t {
    softmax, // over all experts' logits
    sigmoid, // of each logit
    // Two are chosen, those of the highest logits. The weight of each is its softmax among the logits that are not far
    // below it, for the second without the first: those with (own - logit) / max(|logit|, own) up to 2 jitter (Phi-3.5-MoE,
    // arXiv 2409.12136).
    sparse_mixer,
};

} // namespace batchllm
