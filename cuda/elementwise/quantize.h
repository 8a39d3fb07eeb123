// Rows of activations -> e4m3 with a scale a row, for products with weights in e4m3. A row's scale is its
// greatest size / 448. Widths are multiples of kVector and at most kMostNormed.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "elementwise/elementwise.h"

namespace batchllm::cuda {

struct QuantizeArguments {
    DType element;
    const void *x; // [rows, width] of element
    void *out;     // [rows, width] e4m3
    float *scales; // [rows]
    int32_t rows, width;
};
cudaError_t launch_quantize_rows(const QuantizeArguments &arguments, cudaStream_t stream);

// As launch_activation; arguments.out is e4m3.
cudaError_t launch_activation_e4m3(const ActivationArguments &arguments,
                                   float *scales, // [rows]
                                   cudaStream_t stream);

} // namespace batchllm::cuda
