// What the Granites share.
#pragma once

#include "model/config.h"

namespace batchllm {

// Multipliers of the embedding, the scores, the sublayers' results and the logits.
Status set_multipliers(const JsonValue &config, Model *model);

// Experts in place of all layers' feed-forwards and as wide as those, a layer's in two tensors.
Status set_granite_experts(const JsonValue &config, Model *model);

// In all layers a feed-forward, alone or beside experts, whose gate and up are one tensor.
void set_shared_feed_forward(int32_t width, Model *model);

} // namespace batchllm
