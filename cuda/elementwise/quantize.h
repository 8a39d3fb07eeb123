// Rows of activations -> e4m3 with a scale a row, or one for each 128 of its elements, for products with
// weights in e4m3. A scale is the greatest size of what it is of / 448. Widths are multiples of kVector, or of
// 128, and at most kMostNormed.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "elementwise/elementwise.h"
#include "elementwise/norm.h"

namespace batchllm::cuda {

struct QuantizeArguments {
    DType element;
    const void *x; // [., width] of element
    void *out;     // [rows, width] e4m3
    RowScales scales;
    int32_t rows, width;
    const int32_t *from = nullptr; // [rows] the rows of x; null: the first ones
};
cudaError_t launch_quantize_rows(const QuantizeArguments &arguments, cudaStream_t stream);

// As launch_activation; arguments.out is e4m3.
cudaError_t launch_activation_e4m3(const ActivationArguments &arguments, const RowScales &scales,
                                   cudaStream_t stream);

} // namespace batchllm::cuda
