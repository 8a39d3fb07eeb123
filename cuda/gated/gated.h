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

// y = x W^T + what rows' adapters add, times alpha; or added to y. Rounded once. t has been made. For steps of many tokens with
// adapters: the result is not read and written once more.
struct SummedArguments {
    DType element; // of x, W and y: bf16 or f16
    const void *x; // [rows, columns]
    const void *w; // [width, columns]
    void *y;       // [rows, width]
    int32_t rows, columns, width;
    bool add;
    float alpha;
    const AdapterArguments *adapters;
};
// Parts of W begin at multiples of 128 rows.
bool takes_summed(const SummedArguments &arguments);
cudaError_t launch_summed_sm90(const SummedArguments &arguments, int sms, cudaStream_t stream);

// Shapes and types must pass takes_gated() (backend/gpu/gated_product.h).
cudaError_t launch_gated_sm90(const GatedArguments &arguments, int sms, cudaStream_t stream);

} // namespace batchllm::cuda
