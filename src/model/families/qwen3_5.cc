// Qwen3.5: like Qwen3-Next, with a separate tensor for each part of a delta net; dense, or with
// experts in all layers.
#include "model/families/families.h"
#include "model/families/qwen_hybrid.h"
#include "model/families/qwen_moe.h"
#include "model/families/qwen_tower.h"

namespace batchllm {
namespace {

void set_qwen3_5_input(const std::string &prefix, int64_t hidden, DeltaNet *delta) {
    const auto add = [&](const char *name, int64_t rows) {
        delta->input.push_back(named_weight(prefix + name, rows, hidden).values);
    };
    add("in_proj_qkv", delta->channels());
    add("in_proj_z", delta->values_size());
    add("in_proj_b", delta->value_heads);
    add("in_proj_a", delta->value_heads);
}

ConfigDefaults defaults_of(int32_t hidden, int32_t layers, int32_t kv_heads) {
    ConfigDefaults defaults;
    defaults.vocabulary = 248320;
    defaults.hidden = hidden;
    defaults.intermediate = 12288;
    defaults.layers = layers;
    defaults.heads = 16;
    defaults.kv_heads = kv_heads;
    defaults.head_dim = 256;
    defaults.max_positions = 32768;
    return defaults;
}

Status finish(const JsonValue &config, Model *model) {
    RETURN_IF_ERROR(set_activation(config, "hidden_act", Activation::silu, model));
    model->passed_over.push_back("mtp."); // heads that predict further tokens
    return set_delta_nets(config, set_qwen3_5_input, model);
}

} // namespace

Status describe_qwen3_5(const JsonValue &config, Model *model) {
    RETURN_IF_ERROR(describe_gated_attention(config, defaults_of(4096, 32, 4), model));
    return finish(config, model);
}

Status describe_qwen3_5_moe(const JsonValue &config, Model *model) {
    RETURN_IF_ERROR(describe_gated_attention(config, defaults_of(2048, 40, 2), model));
    RETURN_IF_ERROR(set_sparse_layers(config, {512, 256, 8, true}, model));
    RETURN_IF_ERROR(set_shared_experts(config, 512, model));
    for (Layer &layer : model->layers) { // whatever the configuration says
        if (layer.experts() != nullptr) layer.experts()->router.normalised = true;
    }
    return finish(config, model);
}

Status describe_qwen3_5_vision(const JsonValue &config, Model *model) {
    RETURN_IF_ERROR(describe_text_part(config, describe_qwen3_5, false, model));
    set_tower(config, 248056, describe_qwen3_5_tower, model);
    return {};
}

Status describe_qwen3_5_moe_vision(const JsonValue &config, Model *model) {
    RETURN_IF_ERROR(describe_text_part(config, describe_qwen3_5_moe, false, model));
    set_tower(config, 248056, describe_qwen3_5_tower, model);
    return {};
}

} // namespace batchllm
