// The product of gate and up with the activation in its epilogue: y = activation(x G^T) * (x U^T). What the product
// of both would write and the activation read, [rows, 2 width], is never in memory. Sums are f32, and neither is
// rounded before the activation. A row of y does not depend on the other rows, nor on their number. For steps of
// many tokens on devices of compute capability 9.0.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "base/dtype.h"
#include "model/model.h"

namespace batchllm::cuda {

struct GatedArguments {
    DType element; // of x, W and y: bf16 or f16
    Activation kind;
    const void *x; // [rows, columns]
    const void *w; // [2 width, columns]: G, then U
    void *y;       // [rows, width]
    int32_t rows, columns, width;
};

// Whether there is such a product.
constexpr bool takes_gated(DType element, Activation kind, int64_t columns, int64_t width) {
    return (element == DType::bf16 || element == DType::f16) &&
           kind != Activation::clamped_swiglu && columns % 64 == 0 && width % 128 == 0;
}
// With fewer rows cuBLASLt's product and a launch for the activation are as fast.
inline constexpr int64_t kLeastGatedRows = 1024;

cudaError_t launch_gated_sm90(const GatedArguments &arguments, int sms, cudaStream_t stream);

} // namespace batchllm::cuda
