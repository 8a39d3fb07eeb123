// Routers that weigh the experts' inputs (Router::weighs_input): a row of every turn's own, its token's times its weight.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "base/dtype.h"

namespace batchllm::cuda {

// In the compute type, in e4m3, whose scales are what is weighed, or in both.
struct WeighArguments {
    DType element;
    const void *x;       // [tokens, hidden] of element, or null
    void *out;           // [turns, hidden]
    const void *bytes;   // [tokens, hidden] e4m3, or null; hidden: a multiple of 16 then
    const float *scales; // [tokens, groups]
    void *bytes_out;     // [turns, hidden]
    float *scales_out;   // [turns, groups]
    int32_t tokens, chosen, hidden, groups;
    const int32_t *turn_of; // [tokens, chosen]
    float *weights;         // [tokens, chosen]; 1 afterwards, so that results are added as they are
};
cudaError_t launch_weigh(const WeighArguments &arguments, cudaStream_t stream);

} // namespace batchllm::cuda
