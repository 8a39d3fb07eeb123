// A token batch -> the order in which its nodes' states can be computed, and what each starts from.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"

namespace batchllm {

// [nodes] A node's first token starts from its parent's state, which the same batch may still have to compute. So
// nodes with tokens are divided into levels, from 0 on: no node needs a state that is computed on its own level. Mostly
// there are one or two. -1: the node has no tokens.
std::vector<int32_t> state_levels(const TokenBatch &batch);

// The slot of the state before the node's first token of the batch; -1: zeros.
int32_t state_before(const TokenBatch &batch, const ContextNode &node);

} // namespace batchllm
