// Shared by the Gemma families.
#pragma once

#include "model/config.h"

namespace batchllm {

// Everything except windows, ropes, softcaps and head norms. defaults: vocabulary and longest
// request; the rest is filled in.
Status describe_gemma(const JsonValue &config, ConfigDefaults defaults, Model *model);

// Norms before and after both sublayers, with `offset` added to their weights.
void set_norms_around(float offset, Model *model);

// The softcap of scores or logits; 0 if the key is null.
Result<float> read_softcap(const JsonValue &config, std::string_view key, double otherwise);

} // namespace batchllm
