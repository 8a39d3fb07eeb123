// A token batch -> in which order the states of its nodes can be computed, and from what.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"

namespace batchllm {

// [nodes] A node's first token starts from its parent's state, which the same batch may still be computing. So nodes
// with tokens go in levels, from 0 on: those of one level need no state that is made in it. Mostly there are one or
// two. -1: the node has no tokens.
std::vector<int32_t> state_levels(const TokenBatch &batch);

// The slot of the state before the node's first token of the batch; -1: zeros.
int32_t state_before(const TokenBatch &batch, const ContextNode &node);

} // namespace batchllm
