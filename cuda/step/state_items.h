// A token batch -> what its layers with a state go through: the nodes with tokens, level by level
// (backend/state_levels.h), and the chunks of the long ones. Needs no device.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "recurrent/chunk.h"

namespace batchllm::cuda {

struct StateItems {
    std::vector<StateItem> items;   // level by level
    std::vector<StateLevel> levels; // of these
    std::vector<StateChunk> chunks; // the same
};

// Items of least_chunked tokens or more go in chunks.
void list_state_items(const TokenBatch &batch, int32_t least_chunked, StateItems *out);

} // namespace batchllm::cuda
