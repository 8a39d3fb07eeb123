// Helpers that the families share for reading a tower's part of a config.json, beside those of model/config.h.
#pragma once

#include <cstdint>
#include <string>

#include "model/config.h"
#include "model/tower.h"

namespace batchllm {

// Gives the model the tower that "vision_config" describes, if that key is given. `describe` reads it (`vision`) into an empty
// tower, and may give the text model's ropes axes, which change nothing for text. A tower that cannot be described is none,
// and the model keeps its text: Model::no_tower says what was wrong. token: the default of the placeholder's id.
using DescribeTower = Status (*)(const JsonValue &config, const JsonValue &vision, Model *model,
                                 Tower *tower);
void set_tower(const JsonValue &config, int32_t token, DescribeTower describe, Model *model);

// `prefix`.weight and `prefix`.bias.
Weight weight_with_bias(const std::string &prefix, int64_t rows, int64_t columns);
Norm layer_norm(const std::string &prefix, int64_t length, float epsilon);

// The convolution over patches, `prefix`.weight [hidden, channels, frames, size, size], or without frames where there is one.
// Sets what the tower says of patches, whose size is "patch_size".
Status set_patch(const JsonValue &vision, const std::string &prefix, int32_t patch_size,
                 Tower *tower);

// A layer that attends with this many heads of hidden / heads: norms and matrices are still to be named.
Layer tower_layer(int32_t hidden, int32_t heads, int32_t width, Activation activation);

} // namespace batchllm
