// A model's layer inputs (LayerInputs, InputBlock in model/model.h): the parts of all layers before the first,
// and what a layer does with its own. Types as in elementwise/elementwise.h; widths are multiples of kVector.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "base/dtype.h"
#include "elementwise/norm.h"
#include "model/kinds.h"
#include "sampling/sampling.h"

namespace batchllm::cuda {

// inputs = scale * (embedding_scale * table[token] + norm of each part of inputs)
struct LayerInputsArguments {
    DType element;
    void *inputs;                // [count, layers * width]: the projection's result, scaled
    const void *table;           // [vocabulary, layers * width]
    const int32_t *tokens;       // [count] as launch_embed's
    const SampleResult *samples; // the same
    DeviceNorm norm;             // [width] RMSNorm
    float embedding_scale, scale;
    int32_t count, layers, width;
};
cudaError_t launch_layer_inputs(const LayerInputsArguments &arguments, cudaStream_t stream);

// out[i] = activation(x[i]) * inputs[rows[i]]'s part
struct LayerPartArguments {
    DType element;
    Activation kind;
    const void *x;       // [count, width]
    const void *inputs;  // the layer's part of the first token; tokens are `stride` elements apart
    const int32_t *rows; // [count] tokens; null: i itself
    void *out;           // [count, width]
    int64_t stride;
    int32_t count, width;
};
cudaError_t launch_layer_part(const LayerPartArguments &arguments, cudaStream_t stream);

} // namespace batchllm::cuda
