// Shared by the Qwen families with experts.
#pragma once

#include "model/config.h"

namespace batchllm {

// The defaults of a configuration class, for keys that are absent.
struct QwenExperts {
    int32_t width = 0;
    int32_t all = 0;
    int32_t chosen = 0;
    bool normalised = false; // "norm_topk_prob"
};

// Replaces the feed-forward by experts in every "decoder_sparse_step"-th layer except those in
// "mlp_only_layers". Call after the layers are made.
Status set_sparse_layers(const JsonValue &config, const QwenExperts &defaults, Model *model);

// Adds a shared expert with its own gate beside the others. `width`: the class's default.
Status set_shared_experts(const JsonValue &config, int32_t width, Model *model);

} // namespace batchllm
