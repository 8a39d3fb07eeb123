// GLM-4 as published in 2024 ("glm") and in 2025 ("glm4"): half of each head rotates, in pairs of
// neighbours; gate and up are in one tensor. The later one also has norms after both sublayers.
#include "model/config.h"
#include "model/families/families.h"

namespace batchllm {

Status describe_glm(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 151552;
    defaults.intermediate = 13696;
    defaults.layers = 40;
    defaults.kv_heads = 2;
    defaults.head_dim = 128;
    defaults.max_positions = 131072;
    defaults.epsilon = 1.5625e-7;
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    if (!config.given("eos_token_id")) {
        for (const int32_t token : {151329, 151336, 151338}) {
            if (token < model->vocabulary) model->eos_tokens.push_back(token);
        }
    }
    describe_decoder(shape, model);
    fuse_gate_up(model);
    RETURN_IF_ERROR(set_activation(config, "hidden_act", Activation::silu, model));
    RopeDefaults rope;
    rope.part = 0.5;
    rope.partial = true;
    rope.pairs = true;
    RETURN_IF_ERROR(set_rope(config, rope, model));
    ASSIGN_OR_RETURN(const bool bias, read_flag(config, "attention_bias", true));
    if (bias) add_qkv_biases(model);
    return {};
}

Status describe_glm4(const JsonValue &config, Model *model) {
    RETURN_IF_ERROR(describe_glm(config, model));
    for (size_t i = 0; i < model->layers.size(); ++i) {
        const std::string prefix = layer_prefix(i);
        const float epsilon = model->final_norm.epsilon;
        model->layers[i].after_attention =
            named_norm(NormKind::rms, prefix + "post_self_attn_layernorm", model->hidden, epsilon);
        model->layers[i].after_feed_forward =
            named_norm(NormKind::rms, prefix + "post_mlp_layernorm", model->hidden, epsilon);
    }
    return {};
}

} // namespace batchllm
