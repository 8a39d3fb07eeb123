// A token batch -> the order in which its nodes' states can be computed, and the state that each
// starts from.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"

namespace batchllm {

// [nodes] the level of each node with tokens, from 0 on; -1: the node has no tokens. A node's first
// token starts from its parent's state, which the same batch may still have to compute. So no node
// needs a state that is computed on its own level. There are usually one or two levels.
std::vector<int32_t> levels_of_states(const TokenBatch &batch);

// The slot with the state before the node's first token of the batch; -1: zeros.
int32_t state_before(const TokenBatch &batch, const ContextNode &node);

} // namespace batchllm
