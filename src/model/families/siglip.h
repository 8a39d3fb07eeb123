// SigLIP, the tower of Gemma 3.
#pragma once

#include "model/tower_config.h"

namespace batchllm {

// With Gemma 3's projector: means of squares of patches.
Status describe_gemma3_tower(const JsonValue &config, const JsonValue &vision, Model *model,
                             Tower *tower);

} // namespace batchllm
