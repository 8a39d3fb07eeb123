// Checks that a token batch names the state slots that its nodes read and write.
#pragma once

#include "backend/backend.h"

namespace batchllm {

// If the model has a state, every node must have a slot of its own. The nodes must have been
// checked already.
Status check_states(const TokenBatch &batch, const BackendInfo &info);

} // namespace batchllm
