// Shared by Qwen3-Next and Qwen3.5: gated delta nets in most layers, attention with an output gate
// in the others, norms with weight + 1, a rope on a quarter of the head.
#pragma once

#include <string>

#include "model/config.h"

namespace batchllm {

// The decoder with attention in all layers, complete except for the feed-forwards' activation.
Status describe_gated_attention(const JsonValue &config, const ConfigDefaults &defaults,
                                Model *model);

// Replaces attention by delta nets in the layers that are linear_attention in "layer_types" or,
// without that key, in all but every "full_attention_interval"-th. `set_input` sets the parts of
// their input, for tensors that begin with `prefix`. Call it after everything else that affects
// attention.
using SetDeltaInput = void (*)(const std::string &prefix, int64_t hidden, DeltaNet *delta);
Status set_delta_nets(const JsonValue &config, SetDeltaInput set_input, Model *model);

} // namespace batchllm
