// From a layer's QKV product to what attention reads: biases, norms of queries and keys, rotary embedding,
// keys and values into their pages.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "base/dtype.h"
#include "elementwise/norm.h"

namespace batchllm::cuda {

// table[t, i] = scale times cos and sin of positions[t] * frequencies[i], or, with axes, of positions[t, axes[i]], which are
// three each
cudaError_t launch_rope_table(const int32_t *positions, const float *frequencies, int32_t tokens,
                              int32_t half, float scale, float2 *table, cudaStream_t stream,
                              const uint8_t *axes = nullptr);

// Queries, in place: bias, norm, rotation. Keys and values: the same (values not turned), into their
// pages in the layout of attention/attention.h; for f32, [page][kv_head][K, V][64 keys][padded_dim].
// Elements of a head beyond head_dim are zero, and stay so in pages and queries.
struct RopeArguments {
    DType element;
    void
        *qkv; // [tokens, (heads + 2 kv_heads + more_heads) * padded_dim]; kv_heads 0: queries alone
    const float *bias; // [(heads + 2 kv_heads) * padded_dim] or null
    DeviceNorm q_norm,
        k_norm;           // of each head: [padded_dim], or, norm_whole, of all of them together:
    bool norm_whole;      // [heads | kv_heads, padded_dim]; RMSNorm alone
    DeviceNorm v_norm;    // of each head of the values; none where norm_whole
    const float2 *table;  // [tokens, dims / 2] cos, sin; null: no rotation
    int32_t dims;         // the first of a head, even: these turn
    bool pairs;           // element 2 i with 2 i + 1; else i with i + dims / 2
    const int32_t *slots; // [tokens] page * 64 + key; negative: a row beyond the batch, left alone
    void *kv;             // the layer's pages
    int32_t tokens, heads, kv_heads, head_dim, padded_dim; // head_dim at most 512
    // Queries, turned, times 1 + long_scale * ln(1 + (position + long_shift) / long_period), the quotient a whole
    // number; long_scale 0: as they are.
    const int32_t *positions; // [tokens]
    float long_scale;
    int32_t long_period;
    int32_t more_heads = 0; // behind those, of the same size: left alone
    // Keys and values are stored in e4m3: an element over its KV head's scale, at most 448 in size; NaN stays NaN.
    // Not for f32.
    bool kv_e4m3 = false;
    const float *k_scale = nullptr, *v_scale = nullptr; // [kv_heads] f32, above 0; null: 1
    // Of norm_whole, if there are more heads than these: the squares of all queries and of all keys added up, [tokens, 2],
    // of `sharing` times as many heads.
    const float2 *squares = nullptr;
    int32_t sharing = 1;
    bool norm_turned = false; // norms of queries and keys after the rotation; not with norm_whole
    int32_t long_shift = 0;
};
cudaError_t launch_rope(const RopeArguments &arguments, cudaStream_t stream);
cudaError_t launch_rope_e4m3(const RopeArguments &arguments,
                             cudaStream_t stream); // for launch_rope

} // namespace batchllm::cuda
