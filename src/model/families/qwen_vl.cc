// Qwen2-VL, Qwen2.5-VL and Qwen3-VL. Their ropes take an angle from one of three
// positions of a token (time, height, width), which are equal for text: a plain rope.
#include "model/config.h"
#include "model/families/families.h"
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
    ASSIGN_OR_RETURN(const bool windows, read_flag(config, "use_sliding_window", false));
    if (windows)
        return config.at("use_sliding_window")->unsupported("only full attention is supported");
    return {};
}

Status describe_qwen3_text(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 151936;
    defaults.intermediate = 22016;
    defaults.kv_heads = 32;
    defaults.head_dim = 128;
    defaults.max_positions = 128000;
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    set_head_norms(model);
    RETURN_IF_ERROR(set_rope(config, text_rope(500000), model));
    RETURN_IF_ERROR(set_activation(config, "hidden_act", Activation::silu, model));
    return set_attention_biases(config, false, model);
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

} // namespace batchllm
