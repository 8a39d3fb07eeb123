// Layers with latents (model/model.h, Latent), around their attention: from the first product to normed, turned keys in
// their pages and queries, a head's own matrices, and attention itself, in which values are the first elements of keys.
//
// A layer's pages: [page][key_dim / 64][64 keys][64 elements], swizzled as in attention/attention.h, in e4m3 too; for f32
// [page][64 keys][key_dim]. A key is its latent, padded to value_dim (64, 256 or 512), then the turned part, padded to 64.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "attention/attention.h"
#include "attention/worklist.h"
#include "backend/gpu/step_buffers.h"
#include "base/dtype.h"
#include "elementwise/norm.h"
#include "linear/head_products.h"

namespace batchllm::cuda {

// Bytes of a layer's page.
constexpr int64_t latent_page_bytes(int32_t key_dim, int32_t element_bytes) {
    return int64_t{kPageKeys} * key_dim * element_bytes;
}

// In f32; in 16 bits they are Linear::run_heads's.
cudaError_t launch_head_products(const HeadProductArguments &arguments, cudaStream_t stream);

// The first product's results: queries' latents, normed, and keys to their pages.
struct LatentKeyArguments {
    DType element;
    // [tokens, stride]: a query's [q_rank], or something else, then from `at` on the key's latent and turned part
    const void *x;
    const float *bias; // [stride] or null
    int32_t stride, at;
    int32_t q_rank; // 0: queries have no latent
    DeviceNorm q_norm;
    void *normed; // [tokens, q_rank]
    DeviceNorm norm;
    int32_t rank, turned;
    const float2 *table; // [tokens, turned / 2] cos, sin; null: no rotation
    bool pairs;
    const int32_t *slots; // [tokens] page * 64 + key; negative: a row beyond the batch, left alone
    void *kv;
    int32_t key_dim; // padded
    int32_t tokens;
    // Pages in e4m3, in 16 bits: a number is its byte's value times *scale, or times 1 if it is null.
    bool kv_e4m3;
    const float *scale;
    // Queries' latents, normed, times 1 + long_scale ln(1 + floor((position + long_shift) / long_period)).
    const int32_t *positions; // [tokens]
    float long_scale;         // 0: as they are
    int32_t long_period, long_shift;
};
cudaError_t launch_latent_keys(const LatentKeyArguments &arguments, cudaStream_t stream);

// The turned parts of queries, from where the product left them to where attention reads them.
struct LatentQueryArguments {
    DType element;
    const void *q; // [tokens, q_stride]: heads of query_dim, the turned part last
    int64_t q_stride;
    void *out; // [tokens, heads, key_dim]: to the last 64 of each
    int32_t tokens, heads, query_dim, turned, key_dim;
    const float2 *table;
    bool pairs;
};
cudaError_t launch_latent_queries(const LatentQueryArguments &arguments, cudaStream_t stream);

// Attention over latents, in 16 bits: kv_heads 1, head_dim that of keys, out and partials of value_dim, which is head_dim
// less 64; no window, cap or sinks. The second launch merges partials. Each is one kernel with these arguments as its only
// parameter and a grid that depends only on sms, so that a graph can take another step's. They need much shared memory:
// latent_attention_bytes().
cudaError_t launch_latent_attention(const AttentionArguments &arguments, int sms,
                                    cudaStream_t stream);
cudaError_t launch_latent_merge(const AttentionArguments &arguments, int sms, cudaStream_t stream);
int64_t latent_attention_bytes(int32_t key_dim); // of shared memory

// The same as the first launch for keys of 576 on sm_90a, whose items are tiles (WorklistOptions::tile_rows). The merging
// launch must follow it: it resets the queue.
inline constexpr int kLatentTileRows = 64;
cudaError_t launch_latent_attention_sm90(const AttentionArguments &arguments, int sms,
                                         cudaStream_t stream);

// The plain form, on sm_90a: pages of latents -> pages of each head's keys and values, with which attention is that of heads
// of latent_head_dim. Keys end with zeros. For layers of which expands_latents() is true.
struct LatentExpandArguments {
    const void *kv; // the layer's pages
    const int32_t *pages;
    const int32_t *expanded; // [count] indices into pages
    int32_t count, heads, plain;
    const void *keys;   // [heads][512, plain]
    const void *values; // [heads][value_dim, 512]
    void *
        out; // [count][heads][K, V][256 / 64][64 keys][64], swizzled; zeros before the first launch
    bool kv_e4m3; // as in LatentKeyArguments
    const float *scale;
};
cudaError_t launch_latent_expand(const LatentExpandArguments &arguments, DType element, int sms,
                                 cudaStream_t stream);

// Queries of the plain form: heads of query_dim, the turned part last, turned and padded to latent_head_dim. They may stay where
// they are if they are that wide.
struct LatentPlainArguments {
    DType element;
    const void *q; // [tokens, q_stride]
    int64_t q_stride;
    void *out; // [tokens, heads, latent_head_dim], or q
    int64_t out_stride;
    int32_t tokens, heads, query_dim, turned;
    const float2 *table; // [tokens, turned / 2], or null
    bool pairs;
};
cudaError_t launch_latent_plain_queries(const LatentPlainArguments &arguments, cudaStream_t stream);
// x: [rows, latent_head_dim] -> y: [rows, columns] of 2-byte elements, columns a multiple of 8.
cudaError_t launch_latent_narrow(const void *x, void *y, int64_t rows, int32_t columns,
                                 cudaStream_t stream);

// What a worklist for attention in tiles takes into account. The shape is already set.
void set_latent_costs(WorklistOptions *options);

} // namespace batchllm::cuda
