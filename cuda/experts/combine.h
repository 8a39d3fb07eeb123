// What a token's turns made -> the residual stream and the next norm.
#pragma once

#include "elementwise/norm.h"

namespace batchllm::cuda {

// launch_add_norm, whose sublayer's result is the weighted sum of what a token's turns made, in the order of
// experts, after the shared expert's: sigmoid(shared_gate[t * gate_stride]) * delta[t]. With norms: shared(delta[t]) +
// made(the weighted sum), each rounded to the residual's type, as by launches of their own.
struct CombineNorms {
    DeviceNorm shared, made; // made none: neither
};
struct CombineArguments {
    AddNormArguments add;     // delta: the shared expert's, or null: there is none
    const void *made;         // [turns, hidden] of add.element
    const int32_t *turn_of;   // [count, chosen]
    const float *weights;     // [count, chosen]
    const float *shared_gate; // a logit a token; null: 1
    int32_t gate_stride, chosen;
    CombineNorms norms = {}; // not with shared_gate
};
cudaError_t launch_combine(const CombineArguments &arguments, cudaStream_t stream);

} // namespace batchllm::cuda
