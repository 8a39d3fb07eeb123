// What Llama shares with families that differ from it in their defaults.
#pragma once

#include "model/config.h"

namespace batchllm {

Status describe_llama_with(const JsonValue &config, const ConfigDefaults &defaults, Model *model);

} // namespace batchllm
