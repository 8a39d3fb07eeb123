// The memory of a pool -> how much of it is for states, and how much for keys and values.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace batchllm {

struct MemoryNeeds {
    int64_t slot_bytes = 0;  // of a state; 0: the model has none
    int64_t token_bytes = 0; // keys and values of one token
    int64_t step_tokens = 0;
};

struct MemoryShares {
    int64_t state_slots = 0;
    int64_t bytes_left = 0; // for keys and values
};

// slots: as many as that; 0: for each slot as much is left as a request of some hundred tokens of its own
// takes, and there are not more slots than twice the tokens of a step, for more requests than that never run.
// An error where the memory is not enough for the slots, or for one.
Result<MemoryShares> share_memory(int64_t bytes, const MemoryNeeds &needs, int64_t slots);

} // namespace batchllm
