// The product of gate and up with the activation in its epilogue: y = activation(x G^T) * (x U^T). What the product
// of both would write and the activation read, [rows, 2 width], is never in memory. Sums are f32, and neither is
// rounded before the activation. For steps of many tokens on devices of compute capability 9.0.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "base/dtype.h"
#include "model/model.h"

namespace batchllm::cuda {

struct GatedArguments {
    DType element; // of x and W: bf16, f16 or e4m3
    DType result;  // of y: bf16 or f16; element, if that is not e4m3
    Activation kind;
    const void *x;         // [rows, columns]
    const void *w;         // [2 width, columns]: G, then U
    const float *x_scales; // of e4m3: [rows]
    const float *w_scales; // of e4m3: [2 width]
    void *y;               // [rows, width]
    int32_t rows, columns, width;
};

// Whether W's shape can be so multiplied.
constexpr bool takes_gated(DType element, int64_t columns, int64_t width) {
    return element != DType::f32 && columns % (element == DType::e4m3 ? 128 : 64) == 0 &&
           width % 128 == 0;
}

cudaError_t launch_gated_sm90(const GatedArguments &arguments, int sms, cudaStream_t stream);

} // namespace batchllm::cuda
