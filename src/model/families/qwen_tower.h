// The towers of Qwen's models that read pictures.
#pragma once

#include "model/tower_config.h"

namespace batchllm {

// Qwen2-VL: neither positions nor windows.
Status describe_qwen2_tower(const JsonValue &config, const JsonValue &vision, Model *model,
                            Tower *tower);
// Qwen2.5-VL: windows.
Status describe_qwen2_5_tower(const JsonValue &config, const JsonValue &vision, Model *model,
                              Tower *tower);
// Qwen3-VL: positions, deepstack.
Status describe_qwen3_tower(const JsonValue &config, const JsonValue &vision, Model *model,
                            Tower *tower);
// Qwen3.5: the same without deepstack.
Status describe_qwen3_5_tower(const JsonValue &config, const JsonValue &vision, Model *model,
                              Tower *tower);

} // namespace batchllm
