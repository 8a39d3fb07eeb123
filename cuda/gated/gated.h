// The product of gate and up with the activation in its epilogue: y = activation(x G^T) * (x U^T).
// The intermediate result of both products, [rows, 2 width], is never in memory. Sums are f32 and
// are not rounded before the activation. A row of y does not depend on the other rows, nor on their
// number. For steps of many tokens on devices of compute capability 9.0.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "adapters/adapters.h"
#include "backend/gpu/gated_product.h"
#include "base/dtype.h"
#include "model/kinds.h"

namespace batchllm::cuda {

struct GatedArguments {
    DType element; // of x, W and y: bf16 or f16
    Activation kind;
    const void *x; // [rows, columns]
    const void *w; // [2 width, columns]: G, then U
    void *y;       // [rows, width]
    int32_t rows, columns, width;
    // What rows' adapters add to both products before the activation: t has been made. Null: nothing.
    const AdapterArguments *adapters = nullptr;
};

// t of a CTA's rows and a part's B must fit into a stage.
inline bool takes_gated_adapters(const AdapterArguments &adapters) {
    return adapters.whole && adapters.t_stride <= 128 && adapters.most_of_part <= 64;
}

// Shapes and types must pass takes_gated() (backend/gpu/gated_product.h).
cudaError_t launch_gated_sm90(const GatedArguments &arguments, int sms, cudaStream_t stream);

} // namespace batchllm::cuda
