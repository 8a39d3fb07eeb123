// Shared by the Granite families.
#pragma once

#include "model/config.h"

namespace batchllm {

// The multipliers of the embedding, the scores, the sublayers' results and the logits.
Status set_multipliers(const JsonValue &config, Model *model);

// Replaces the feed-forwards of all layers by experts of the same width; each layer's experts are
// in two tensors.
Status set_granite_experts(const JsonValue &config, Model *model);

// Gives all layers a feed-forward, alone or beside experts, with gate and up in one tensor.
void set_shared_feed_forward(int32_t width, Model *model);

} // namespace batchllm
