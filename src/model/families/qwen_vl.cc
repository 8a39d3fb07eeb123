// Qwen2-VL, Qwen2.5-VL and Qwen3-VL, the last dense or with experts. Their ropes take an angle from one of three
// positions of a token (time, height, width), which are equal for text: a plain rope.
#include "model/config.h"
#include "model/families/families.h"
#include "model/families/qwen_moe.h"
#include "model/families/qwen_tower.h"

namespace batchllm {
namespace {

RopeDefaults text_rope(double theta) {
    RopeDefaults rope;
    rope.theta = theta;
    rope.default_aliases = {"mrope"};
    return rope;
}

Status describe_qwen2_text(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 152064;
    defaults.hidden = 8192;
    defaults.intermediate = 29568;
    defaults.layers = 80;
    defaults.heads = 64;
    defaults.kv_heads = 8;
    defaults.max_positions = 32768;
    defaults.epsilon = 1e-5;
    defaults.bos = 151643;
    defaults.eos = {151645};
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    add_qkv_biases(model);
    RETURN_IF_ERROR(set_rope(config, text_rope(1e6), model));
    RETURN_IF_ERROR(set_activation(config, "hidden_act", Activation::silu, model));
    return refuse_flag(config, "use_sliding_window", "only full attention is supported");
}

Status describe_both_qwen3(const JsonValue &config, ConfigDefaults defaults, Model *model) {
    defaults.vocabulary = 151936;
    defaults.max_positions = 128000;
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    set_head_norms(model);
    RETURN_IF_ERROR(set_rope(config, text_rope(500000), model));
    RETURN_IF_ERROR(set_activation(config, "hidden_act", Activation::silu, model));
    return set_attention_biases(config, false, model);
}

Status describe_qwen3_text(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.intermediate = 22016;
    defaults.kv_heads = 32;
    defaults.head_dim = 128;
    return describe_both_qwen3(config, defaults, model);
}

// The experts of a layer are in two tensors, with rows and columns the other way round.
void stack_experts(const std::string &prefix, int64_t hidden, Experts *experts) {
    const auto count = static_cast<int32_t>(experts->each.size());
    const int32_t width = experts->each[0].width;
    const TransposedStack both{prefix + "gate_up_proj", count, hidden, 2 * int64_t{width}};
    const TransposedStack down{prefix + "down_proj", count, width, hidden};
    for (int32_t e = 0; e < count; ++e) {
        FeedForward &expert = experts->each[static_cast<size_t>(e)];
        expert.gate = rows_of_stack(both, e, 0, width);
        expert.up = rows_of_stack(both, e, width, width);
        expert.down = rows_of_stack(down, e, 0, hidden);
    }
}

Status describe_qwen3_moe_text(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.hidden = 2048;
    defaults.intermediate = 5632;
    defaults.layers = 24;
    defaults.heads = 16;
    defaults.kv_heads = 16;
    RETURN_IF_ERROR(describe_both_qwen3(config, defaults, model));
    RETURN_IF_ERROR(set_sparse_layers(config, {1408, 60, 4}, model));
    for (size_t i = 0; i < model->layers.size(); ++i) {
        Experts *experts = model->layers[i].experts();
        if (experts == nullptr) continue;
        experts->router.normalised = true; // whatever "norm_topk_prob" says
        stack_experts(layer_prefix(i) + "mlp.experts.", model->hidden, experts);
    }
    return {};
}

// Tied if either the whole configuration or its text part says so.
Status describe_part(const JsonValue &config, Status (*describe)(const JsonValue &, Model *),
                     Model *model) {
    RETURN_IF_ERROR(describe_text_part(config, describe, false, model));
    ASSIGN_OR_RETURN(const bool tied,
                     read_flag(*config.at("text_config"), "tie_word_embeddings", false));
    model->tied = model->tied || tied;
    return {};
}

// Published files have the text model's keys at the top level.
Status describe_qwen2_parts(const JsonValue &config, Model *model) {
    if (config.given("text_config")) return describe_part(config, describe_qwen2_text, model);
    RETURN_IF_ERROR(describe_qwen2_text(config, model));
    pass_over_vision(model);
    return {};
}

} // namespace

Status describe_qwen2_vl(const JsonValue &config, Model *model) {
    RETURN_IF_ERROR(describe_qwen2_parts(config, model));
    set_tower(config, 151655, describe_qwen2_tower, model);
    return {};
}

Status describe_qwen2_5_vl(const JsonValue &config, Model *model) {
    RETURN_IF_ERROR(describe_qwen2_parts(config, model));
    set_tower(config, 151655, describe_qwen2_5_tower, model);
    return {};
}

Status describe_qwen3_vl(const JsonValue &config, Model *model) {
    RETURN_IF_ERROR(describe_part(config, describe_qwen3_text, model));
    set_tower(config, 151655, describe_qwen3_tower, model);
    return {};
}

Status describe_qwen3_vl_moe(const JsonValue &config, Model *model) {
    RETURN_IF_ERROR(describe_part(config, describe_qwen3_moe_text, model));
    set_tower(config, 151655, describe_qwen3_tower, model);
    return {};
}

} // namespace batchllm
