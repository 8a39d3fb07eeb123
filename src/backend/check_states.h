// Checks that a token batch names the state slots that its nodes read and write.
#pragma once

#include "backend/backend.h"

namespace batchllm {

// In a model with a state every node must have a slot of its own. The nodes themselves have been checked.
Status check_states(const TokenBatch &batch, const BackendInfo &info);

} // namespace batchllm
