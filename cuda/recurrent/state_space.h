// A layer of Mamba-2 (arXiv 2405.21060; LinearAttention with StateRule::state_space in model/model.h), from the product
// of its input matrix to what its output matrix takes: convolution, steps, the rule over each context node of a step,
// gate, norm.
//
// Items, levels, slots, states and rings are those of a delta net (delta.h). C, B and x of the paper are q, k and v here.
#pragma once

#include "recurrent/chunk.h"

namespace batchllm::cuda {

inline constexpr int32_t kMostStateKeys = 256, kMostStateValues = 128; // of a head

struct StateSpaceArguments {
    // projected: of a token q, k, v, z and then a of all heads; norm: [values_size].
    DeltaArguments delta;
    const float *bias;           // [channels] of the convolution; or null: 0
    const float *skip;           // [value_heads], or null: 0
    float least_step, most_step; // the limits
    int32_t norm_parts;          // parts of a token's results that are normed each by itself
};

// What of a layer of such a shape the kernels do not take; null: nothing.
const char *missing_in_state_space(int32_t key_dim, int32_t value_dim, int32_t value_heads,
                                   int32_t norm_parts);

// Items [begin, chunked) of the level, whose results are gated but not normed. Those of one token leave their rings up
// to date; the others' are launch_delta_rings'.
cudaError_t launch_state_space_steps(const StateSpaceArguments &arguments, cudaStream_t stream);

// Of the items [chunked, end) of a level and their chunks.
struct StateSpaceChunks {
    StateSpaceArguments space;
    const DeltaChunk *chunks; // of the step
    int32_t most_chunks;      // no level has more, or it is only slower; the same of items
    int32_t items;
    void *mixed; // [tokens, channels] elements: q, k and v convolved
};

// Whether there are kernels for such heads. In f16 the numbers of S and of q . k may be too large.
bool takes_state_space_chunks(DType element, int32_t key_dim, int32_t value_dim);

// Those items whole, but for the norm and their rings.
cudaError_t launch_state_space_chunks(const StateSpaceChunks &arguments, cudaStream_t stream);

// Norms the results of tokens [0, tokens) where they are: after all levels.
cudaError_t launch_state_space_norm(const StateSpaceArguments &arguments, int64_t tokens,
                                    cudaStream_t stream);

} // namespace batchllm::cuda
