// Shared by Ministral 3 and Mistral 4.
#pragma once

#include "model/config.h"

namespace batchllm {

// Queries grow with their position: a rope's "llama_4_scaling_beta", relative to its original length.
Status set_long_scale(const JsonValue &config, Model *model);

} // namespace batchllm
