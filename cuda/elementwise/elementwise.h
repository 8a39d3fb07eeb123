// The steps of a layer that are not matrix products or attention, each one pass over its tensors.
// "element" is the compute type: bf16, f16 or f32; "stream" the type of the residual stream: the
// element's or f32. Arithmetic is f32. Launchers enqueue and return at once; sizes of 0 are no-ops.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "base/dtype.h"
#include "sampling/sampling.h"

namespace batchllm::cuda {

inline constexpr int kVector = 8; // elements that a thread moves at once; row lengths are multiples

// A matrix as a file holds it -> as the products read it. Rows and columns come in groups (heads),
// each padded: row r goes to (r / row_group) * row_group_out + r % row_group; columns likewise.
struct ConvertArguments {
    const void *from; // [rows, columns] of from_type
    DType from_type;
    void *to; // row stride to_stride
    DType to_type;
    int64_t row_begin; // number of from's first row in the whole matrix
    int64_t rows, columns, to_stride;
    int64_t row_group, row_group_out, column_group, column_group_out;
};
cudaError_t launch_convert(const ConvertArguments &arguments, cudaStream_t stream);

// count elements, roughly normal with the given deviation around mean; a function of seed and index.
cudaError_t launch_random(void *to, DType type, int64_t count, float mean, float deviation,
                          uint64_t seed, cudaStream_t stream);

// residual[t] = table[tokens[t]]; a token -1 - r stands for the one in samples[r].
cudaError_t launch_embed(DType element, DType residual_type,
                         const void *table,           // [vocabulary, hidden]
                         const int32_t *tokens,       // [count]
                         const SampleResult *samples, // of the batch before; null: no such token
                         int32_t count, int32_t hidden, void *residual, cudaStream_t stream);

// out[i] = x[rows[i]] / rms(x[rows[i]]) * weight; rows null: i itself.
struct NormArguments {
    DType element, stream_type;
    const void *x; // [., hidden] of stream_type
    const int32_t *rows;
    const float *weight; // [hidden]
    float epsilon;
    void *out; // [count, hidden] of element
    int32_t count, hidden;
};
cudaError_t launch_rms_norm(const NormArguments &arguments, cudaStream_t stream);

// table[t, i] = cos and sin of positions[t] * inverse_frequencies[i]
cudaError_t launch_rope_table(const int32_t *positions, const float *inverse_frequencies,
                              int32_t tokens, int32_t half, float2 *table, cudaStream_t stream);

// Queries, in place: bias, RMSNorm of each head, rotary embedding. Keys and values: the same (values
// the bias alone), into their pages in the layout of attention/attention.h; for f32, [page][kv_head][K, V][64
// keys][padded_dim]. Elements of a head beyond head_dim are left alone: zero in pages and queries.
struct RopeArguments {
    DType element;
    void *qkv;                    // [tokens, (heads + 2 kv_heads) * padded_dim]
    const float *bias;            // [(heads + 2 kv_heads) * padded_dim] or null
    const float *q_norm, *k_norm; // [head_dim] or null
    float epsilon;
    const float2 *table;  // [tokens, head_dim / 2] cos, sin
    const int32_t *slots; // [tokens] page * 64 + key; negative: a row beyond the batch, left alone
    void *kv;             // the layer's pages
    int32_t tokens, heads, kv_heads, head_dim, padded_dim;
};
cudaError_t launch_rope(const RopeArguments &arguments, cudaStream_t stream);

// out = silu(x[, :width] + bias) * (x[, width:] + bias)
cudaError_t launch_swiglu(DType element, const void *x, // [rows, 2 width]
                          const float *bias,            // [2 width] or null
                          void *out, int32_t rows, int32_t width, cudaStream_t stream);

// x += bias, each row
cudaError_t launch_add_bias(DType type, void *x, const float *bias, int32_t rows, int32_t width,
                            cudaStream_t stream);

// out[i] = x[rows[i]]; bytes of a row: a multiple of 16
cudaError_t launch_gather(const void *x, const int32_t *rows, void *out, int32_t count,
                          int64_t row_bytes, cudaStream_t stream);

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
