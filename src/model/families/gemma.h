// Shared by the Gemma families.
#pragma once

#include "model/config.h"

namespace batchllm {

// What all Gemmas share, with the defaults of one of them, except what is after the sublayers: tied,
// with heads of 256 and a scaled embedding. The norms' offsets and the activation are not set.
Status describe_plain_gemma(const JsonValue &config, ConfigDefaults defaults, Model *model);

// For Gemma 2 and 3, everything except windows, ropes, softcaps and head norms. defaults: vocabulary and longest
// request; the rest is filled in.
Status describe_gemma(const JsonValue &config, ConfigDefaults defaults, Model *model);

// Norms before and after both sublayers, with `offset` added to their weights.
void set_norms_around(float offset, Model *model);

// The softcap of scores or logits; 0 if the key is null.
Result<float> read_softcap(const JsonValue &config, std::string_view key, double otherwise);

} // namespace batchllm
