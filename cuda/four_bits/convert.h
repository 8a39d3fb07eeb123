// On the device: four-bit weights as checkpoints mean them -> packed (four_bits/layout.h), once at load. Packed -> elements,
// for steps of so many tokens that the usual product with them is faster: a matrix is expanded just before it is used, at
// a copy's rate. And for element types that the products with packed weights do not have.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

#include "base/dtype.h"
#include "four_bits/pack.h"

namespace batchllm::cuda {

// One kernel for a source; launches of sources that share a target must follow each other.
cudaError_t launch_pack(const PackTarget &target, const PackSource &source, cudaStream_t stream);

struct ExpandArguments {
    PackedShape shape;       // of one matrix
    DType packed_for;        // bf16 or f16: of int4's scales
    const std::byte *packed; // [matrices, shape.bytes()]
    int32_t matrices;
    const float *factors; // [matrices, rows], or null: 1
    DType type;           // of what is written; int4 alone: e4m3
    // Row-major [matrices, rows, columns]; or with panels, in 16 bits alone, as the grouped products read it
    // (experts/grouped.h).
    bool panels;
    // Row-major: rows of gate and up, which stand in turns of 8, are written as all of gate, then all of up.
    bool apart;
    void *out;
    const float *scales = nullptr; // e4m3: [matrices, rows], in the order of rows that are written
};

// cudaErrorInvalidValue: panels of f32 or e4m3, or apart.
cudaError_t launch_expand(const ExpandArguments &arguments, cudaStream_t stream);

// Scales of rows with which int4 is written as e4m3: what is largest among the numbers that a row's scales and zero points
// could make becomes 448. `matrices` rows of them, in the order of `apart`.
cudaError_t launch_row_scales(const ExpandArguments &arguments, float *out, cudaStream_t stream);

// out[r, c] = x[r, order[c]], elements of 16 bits: the x of a matrix that was packed in an order (PackSource::order).
// columns a multiple of 8.
struct TakeColumnsArguments {
    const void *x;        // [rows, columns]
    const int32_t *order; // [columns]
    int32_t rows, columns;
    void *out; // [rows, columns], not x
};
cudaError_t launch_take_columns(const TakeColumnsArguments &arguments, cudaStream_t stream);

} // namespace batchllm::cuda
