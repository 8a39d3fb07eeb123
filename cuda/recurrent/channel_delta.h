// A layer of Kimi's delta nets (arXiv 2510.26692; ChannelDeltaNet in model/model.h), from the products of its input matrix and
// of its gates' matrices to what its output matrix takes: convolution, decays, the rule over each context node of a step, norm,
// gate.
//
// Items, levels, slots, states and rings are those of a delta net (delta.h). All items go token by token.
#pragma once

#include "recurrent/delta.h"

namespace batchllm::cuda {

// Copies the part of each token's projection that z is made of, and that of a, to places of their own.
struct GateInputArguments {
    DType element;
    const void *projected; // [tokens, stride]
    int64_t stride;
    int32_t z_begin, a_begin; // of the parts, in a row
    int32_t rank;             // elements of a part
    int64_t tokens;
    void *of_z, *of_a; // [tokens, rank] elements
};
cudaError_t launch_gate_inputs(const GateInputArguments &arguments, cudaStream_t stream);

struct ChannelDeltaArguments {
    // projected: of each token q, k and v of all heads, and from rate_begin on b; step: [value_heads, key_dim].
    DeltaArguments delta;
    int32_t rate_begin;
    const void *a; // [tokens, value_heads, key_dim] elements
    const void *z; // [tokens, value_heads, value_dim] elements
    // Items [begin, chunked) of the level when it is launched. A graph's next replay may have more: then it is slower.
    int32_t items;
};

// Items [begin, chunked) of the level. Those of one token also update their rings; those of the others are left to
// launch_delta_rings.
cudaError_t launch_channel_delta(const ChannelDeltaArguments &arguments, cudaStream_t stream);

} // namespace batchllm::cuda
