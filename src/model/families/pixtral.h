// Pixtral, the tower of Mistral Small 3 and Ministral 3.
#pragma once

#include "model/tower_config.h"

namespace batchllm {

Status describe_pixtral_tower(const JsonValue &config, const JsonValue &vision, Model *model,
                              Tower *tower);

} // namespace batchllm
