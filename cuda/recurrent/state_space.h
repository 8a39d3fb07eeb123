// A layer of Mamba-2 (arXiv 2405.21060; Mamba2 in model/model.h), from the product
// of its input matrix to what its output matrix takes: convolution, steps, the rule over each context node of a step,
// gate, norm.
// The gate may stand behind the norm, or there is no norm.
//
// Items, levels, slots, states and rings are those of a delta net (delta.h). The paper's C, B and x are called q, k and
// v here.
#pragma once

#include "recurrent/chunk.h"

namespace batchllm::cuda {

inline constexpr int32_t kMostStateKeys = 256, kMostStateValues = 128; // of a head

struct StateSpaceArguments {
    // projected: of each token q, k, v, z and a of all heads; norm: [values_size()].
    DeltaArguments delta;
    const float *bias;           // [channels] of the convolution; or null: 0
    const float *skip;           // [value_heads], or null: 0
    float least_step, most_step; // the limits
    int32_t norm_parts;          // a token's results are normed in so many equal parts
    bool gate_last;              // results are gated behind the norm, not before it
    // Items [begin, chunked) of the level when it is launched. A graph's next replay may have more: then it is slower.
    int32_t stepped;
};

// What the kernels do not compute of a layer of such a shape; null: nothing.
const char *missing_in_state_space(int32_t key_dim, int32_t value_dim, int32_t value_heads,
                                   int32_t norm_parts);

// Items [begin, chunked) of the level. Their results are not normed, but gated unless that is last. Items of one token also
// update their rings; those of the others are left to launch_delta_rings.
cudaError_t launch_state_space_steps(const StateSpaceArguments &arguments, cudaStream_t stream);

// Of the items [chunked, end) of a level and their chunks.
struct StateSpaceChunks {
    StateSpaceArguments space;
    const StateChunk *chunks; // of the step
    // Of the level when it is launched. A graph's next replay may have more of either: then it is slower.
    int32_t chunk_count, item_count;
    void *mixed; // [tokens, channels] elements: q, k and v convolved
    // [tokens, value_heads] the logarithm to base 2 of the decay from the chunk's beginning to the token, and its step
    float2 *gates;
};

// The first part of what follows: `mixed` and `gates` of all chunks of the level.
cudaError_t launch_state_space_inputs(const StateSpaceChunks &arguments, cudaStream_t stream);

// All that those items need, but for the norm and their rings. Of heads that takes_state_space_chunks() has.
cudaError_t launch_state_space_chunks(const StateSpaceChunks &arguments, cudaStream_t stream);

// Of one norm that others share, for `sharing` times as many results: their squares added up, [tokens] floats `stride`
// apart. Null: it is not shared.
struct SharedNorm {
    const float *squares = nullptr;
    int32_t stride = 0, sharing = 1;
};

// Norms the results of tokens [0, tokens) in place, after all levels; and gates them if that is last.
cudaError_t launch_state_space_norm(const StateSpaceArguments &arguments, const SharedNorm &shared,
                                    int64_t tokens, cudaStream_t stream);

} // namespace batchllm::cuda
