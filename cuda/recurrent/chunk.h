// The gated delta rule by products of matrices, kStateChunk tokens of an item at a time: the WY form of arXiv
// 2406.06484 with decays (2412.06464). For heads of 128 by 128 in 16 bits, sums in f32.
//
// With G_i the logarithm of the decay from the chunk's beginning up to token i, and S the state before the chunk:
//     A_ij = rate_i exp(G_i - G_j) k_i . k_j   for j < i;   T = (1 + A)^-1
//     W = T (rate exp(G) k)    U = T (rate v)    P_ij = exp(G_i - G_j) q_i . k_j   for j <= i
// which depend on no state, so that all chunks of a level are computed at once; and chunk after chunk
//     N = U - W S
//     results = exp(G) q S + P N
//     S = exp(G_last) S + (exp(G_last - G) N)^T k, transposed
#pragma once

#include "backend/gpu/state_chunks.h"
#include "recurrent/delta.h"

namespace batchllm::cuda {

inline constexpr int32_t kStateChunk = 64;

struct StateChunk {
    int32_t item;  // of the step's
    int32_t first; // tokens [first, first + kStateChunk) of the item's, or as many as there are
};

// Of the items [chunked, end) of a level and their chunks.
struct ChunkArguments {
    DeltaArguments delta;     // out: the results, normed and gated
    const StateChunk *chunks; // of the step
    // Of the level when it is launched. A graph's next replay may have more of either: then it is slower.
    int32_t chunk_count, item_count;
    int64_t tokens; // of the step, rounded up: `projected` and what follows have so many rows
    void *mixed;    // [tokens, channels] elements: q, k and v convolved; then U in v's place
    // [tokens, value_heads] the logarithm to base 2 of the decay, and the rate; then exp(G), exp(G_last - G)
    float2 *gates;
    void *w; // [tokens, value_heads, key_dim] elements
    void *p; // [tokens, value_heads, kStateChunk] elements: by the chunk's tokens
};

// All that those items need, but for their rings. Of heads that takes_chunks() has.
cudaError_t launch_delta_chunks(const ChunkArguments &arguments, cudaStream_t stream);

// Its four parts, one after the other. With delta.sm90 there are two: launch_within_chunks makes its own inputs, and
// launch_across_chunks norms and gates the results itself.
cudaError_t launch_chunk_inputs(const ChunkArguments &arguments, cudaStream_t stream);
cudaError_t launch_within_chunks(const ChunkArguments &arguments, cudaStream_t stream);
cudaError_t launch_across_chunks(const ChunkArguments &arguments, cudaStream_t stream);
cudaError_t launch_chunk_results(const ChunkArguments &arguments, cudaStream_t stream);

// These two with delta.sm90.
cudaError_t launch_within_sm90(const ChunkArguments &arguments, cudaStream_t stream);
cudaError_t launch_across_sm90(const ChunkArguments &arguments, cudaStream_t stream);

} // namespace batchllm::cuda
