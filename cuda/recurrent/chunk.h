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
    int32_t most_chunks;      // no level has more
    int32_t items;  // of the level; where a graph's next replay has others, it is only slower
    int64_t tokens; // of the step, rounded up: so many rows have `projected` and what follows
    void *mixed;    // [tokens, channels] elements: q, k and v convolved; then U in v's place
    float2 *
        gates; // [tokens, value_heads] logarithm to base 2 of the decay, and rate; then exp(G), exp(G_last - G)
    void *w; // [tokens, value_heads, key_dim] elements; if by_rule() T instead, as p
    void *p; // [tokens, value_heads, kStateChunk] elements: by the chunk's tokens

    // With delta.sm90: by the kernels that keep a value head whole (rule_sm90.cu), which are faster where there are
    // heads for most of the device. Both ways are right for whatever a graph's next replay has.
    bool by_rule() const {
        return delta.sm90 && int64_t{2} * items * delta.value_heads > delta.sms;
    }
};

// Whether there are kernels for such heads.
bool takes_chunks(DType element, int32_t key_dim, int32_t value_dim);

// The level's items whole, but for their rings.
cudaError_t launch_delta_chunks(const ChunkArguments &arguments, cudaStream_t stream);

// Its four parts, one after the other. With delta.sm90 the third norms and gates what it finds, and the last does
// nothing. If by_rule() the second makes T and P alone; else it makes its own inputs, so that the first is left out.
cudaError_t launch_chunk_inputs(const ChunkArguments &arguments, cudaStream_t stream);
cudaError_t launch_within_chunks(const ChunkArguments &arguments, cudaStream_t stream);
cudaError_t launch_across_chunks(const ChunkArguments &arguments, cudaStream_t stream);
cudaError_t launch_chunk_results(const ChunkArguments &arguments, cudaStream_t stream);

// What the second and the third launch with delta.sm90: if by_rule(), and else.
cudaError_t launch_rule_weights_sm90(const ChunkArguments &arguments, cudaStream_t stream);
cudaError_t launch_rule_sm90(const ChunkArguments &arguments, cudaStream_t stream);
cudaError_t launch_within_sm90(const ChunkArguments &arguments, cudaStream_t stream);
cudaError_t launch_across_sm90(const ChunkArguments &arguments, cudaStream_t stream);

} // namespace batchllm::cuda
