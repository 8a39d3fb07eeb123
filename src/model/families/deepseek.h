// Shared by families with latent attention.
#pragma once

#include "model/config.h"

namespace batchllm {

// The sizes of a class.
struct LatentDefaults {
    int32_t q_rank = 1536, rank = 512, plain = 128, turned = 64, value_dim = 128;
    bool turns = true; // there is a rope
    bool pairs = true;
    bool of_heads = false; // the rope's keys count the turned part as a share of a head
};

// Replaces attention by latent attention in the layers of a decoder that attend. of_rope: has the rope's keys.
Status set_latents(const JsonValue &config, const JsonValue &of_rope,
                   const LatentDefaults &defaults, Model *model);

} // namespace batchllm
