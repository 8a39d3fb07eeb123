// Attention in f32, one token and head per block: for checks, not for speed. Reads the nodes' pages
// directly, without a worklist.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "attention/attention.h"

namespace batchllm::cuda {

inline constexpr int kMostPlainHeadDim = 576;

struct PlainAttentionArguments {
    int32_t tokens, heads, kv_heads, head_dim; // head_dim: at most kMostPlainHeadDim
    float scale;
    int32_t window;       // 0: all
    const float *q;       // [tokens, q_stride]
    int64_t q_stride;     // elements
    float *out;           // [tokens, heads * head_dim]
    const float *kv;      // the layer's pages [page][kv_head][K, V][64][head_dim]
    const int32_t *pages; // page numbers, node by node
    const AttentionNode *nodes;
    const int32_t *node_of;   // [tokens]
    const int32_t *positions; // [tokens]
    float softcap;            // as in AttentionArguments
    const float *sinks;       // as in AttentionArguments
    // Latents: the values are the first so many elements of the keys, pages are [page][64][head_dim], out [tokens, heads *
    // latent_dim]. 0: not so.
    int32_t latent_dim = 0;
    const int32_t *last_seen = nullptr; // [tokens] the last position that each sees; null: its own
    bool by_position = false; // keys are added in the order of positions, independent of nodes
    bool chunked = false; // positions are in chunks of `window`, and a token sees those of its own
};

cudaError_t launch_plain_attention(const PlainAttentionArguments &arguments, cudaStream_t stream);

} // namespace batchllm::cuda
