// The steps of a layer that are not matrix products, attention, norms or ropes, each one pass over its
// tensors.
// "element" is the compute type: bf16, f16 or f32; "stream" the type of the residual stream: the
// element's or f32. Arithmetic is f32. Launchers enqueue and return at once; sizes of 0 are no-ops.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "base/dtype.h"
#include "model/kinds.h"
#include "sampling/sampling.h"

namespace batchllm::cuda {

inline constexpr int kVector = 8; // elements that a thread moves at once; row lengths are multiples

// A matrix as a file holds it -> as the products read it. Rows and columns come in groups (heads),
// each padded: row r goes to (r / row_group) * row_group_out + r % row_group; columns likewise. swizzled:
// 16 bytes of a group, the c-th, then change places with the (c ^ row % 8)-th; elements are e4m3 or of two bytes.
// e4m3 stays e4m3.
struct ConvertArguments {
    const void *from; // [rows, columns] of from_type
    DType from_type;
    void *to; // row stride to_stride
    DType to_type;
    int64_t row_begin; // number of from's first row in the whole matrix
    int64_t rows, columns, to_stride;
    int64_t row_group, row_group_out, column_group, column_group_out;
    float scale = 1, offset = 0; // elements become scale * x + offset
    bool swizzled = false;
};
cudaError_t launch_convert(const ConvertArguments &arguments, cudaStream_t stream);

// sums[r * sums_stride] = the squares of x[r * stride + i], i < columns, added up. All counts are multiples of kVector.
struct RowSquaresArguments {
    DType element;
    const void *x;
    int64_t stride;
    int32_t rows, columns;
    float *sums;
    int32_t sums_stride;
};
cudaError_t launch_row_squares(const RowSquaresArguments &arguments, cudaStream_t stream);

// count elements, roughly normal with the given deviation around mean; a function of seed and index.
cudaError_t launch_random(void *to, DType type, int64_t count, float mean, float deviation,
                          uint64_t seed, cudaStream_t stream);

// residual[t] = scale * table[tokens[t]]; a token -1 - r stands for the one in samples[r].
cudaError_t launch_embed(DType element, DType residual_type,
                         const void *table,           // [vocabulary, hidden]
                         const int32_t *tokens,       // [count]
                         const SampleResult *samples, // of the batch before; null: no such token
                         int32_t count, int32_t hidden, float scale, void *residual,
                         cudaStream_t stream);

// out = activation(x[, :width] + bias) * (x[, width:] + bias); not gated: without the second half
struct ActivationArguments {
    DType element;
    Activation kind;
    bool gated;
    const void *x;     // [rows, 2 width], or [rows, width]
    const float *bias; // of a row of x, or null
    void *out;         // [rows, width]
    int32_t rows, width;
    const float *curve = nullptr;      // of xielu: rise and fall
    const uint8_t *left_out = nullptr; // [rows]; rows where it is not 0 are left as they are
};
cudaError_t launch_activation(const ActivationArguments &arguments, cudaStream_t stream);

// x[t] *= sigmoid(gates[t] + bias)
struct GateArguments {
    DType element;
    void *x; // [rows, width]
    const void
        *gates; // of the first row; rows are gate_stride elements apart, a multiple of kVector
    const float *bias; // [width] or null
    int64_t gate_stride;
    int32_t rows, width;
};
cudaError_t launch_gate(const GateArguments &arguments, cudaStream_t stream);

// x += bias, each row
cudaError_t launch_add_bias(DType type, void *x, const float *bias, int32_t rows, int32_t width,
                            cudaStream_t stream);

// logits = softcap * tanh((logits + bias) / softcap); softcap 0: the bias alone
cudaError_t launch_finish_logits(float *logits, // [rows, stride], stride a multiple of kVector
                                 int64_t rows, int64_t stride,
                                 const float *bias, // [stride] or null
                                 float softcap, cudaStream_t stream);

// out[i] = x[rows[i]]; bytes of a row: a multiple of 16
cudaError_t launch_gather(const void *x, const int32_t *rows, void *out, int32_t count,
                          int64_t row_bytes, cudaStream_t stream);

// sums[i] = x[begin] + .. + x[begin + count - 1], begin and count of spans[i]; in f32, in that order
struct SumSpan {
    int32_t begin, count;
};
cudaError_t launch_sum_rows(DType type, const void *x, // [rows, width]
                            const SumSpan *spans,      // [count]
                            float *sums,               // [count, width]; may be pinned
                            int32_t count, int32_t width, cudaStream_t stream);

// Up to kMost copies within the device. Addresses are multiples of 16; bytes are rounded up to 16.
struct CopyArguments {
    static constexpr int32_t kMost = 16;
    const void *from[kMost];
    void *to[kMost];
    int64_t bytes[kMost];
    int32_t count;
};
cudaError_t launch_copies(const CopyArguments &arguments, cudaStream_t stream);

} // namespace batchllm::cuda
