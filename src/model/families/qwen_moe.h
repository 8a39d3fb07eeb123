// What the Qwens with experts share.
#pragma once

#include "model/config.h"

namespace batchllm {

// A class's defaults, for keys that the configuration does not have.
struct QwenExperts {
    int32_t width = 0;
    int32_t all = 0;
    int32_t chosen = 0;
    bool normalised = false; // "norm_topk_prob"
};

// Replaces the feed-forward by experts in every "decoder_sparse_step"-th layer except those in
// "mlp_only_layers". Call it after the layers are made.
Status set_sparse_layers(const JsonValue &config, const QwenExperts &defaults, Model *model);

// Adds a shared expert, with a gate of its own, beside the others. `width`: the class's default.
Status set_shared_experts(const JsonValue &config, int32_t width, Model *model);

} // namespace batchllm
