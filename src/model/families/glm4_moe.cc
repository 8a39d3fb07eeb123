// GLM-4.5 and later with experts (Glm4Moe): a sigmoid router with a correction, groups of experts, a
// shared expert; the first layers are dense. Half of each head rotates.
#include "model/config.h"
#include "model/families/families.h"

namespace batchllm {

Status describe_glm4_moe(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 151552;
    defaults.intermediate = 10944;
    defaults.layers = 46;
    defaults.heads = 96;
    defaults.kv_heads = 8;
    defaults.max_positions = 131072;
    defaults.epsilon = 1e-5;
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    RopeDefaults rope;
    rope.part = 0.5;
    rope.partial = true;
    RETURN_IF_ERROR(set_rope(config, rope, model));
    GroupedExperts experts;
    experts.counts = {128, 8};
    experts.width = 1408;
    experts.dense = 1;
    experts.router.normalised = true;
    RETURN_IF_ERROR(set_grouped_experts(config, experts, model));
    RETURN_IF_ERROR(set_activation(config, "hidden_act", Activation::silu, model));
    ASSIGN_OR_RETURN(const bool norms, read_flag(config, "use_qk_norm", false));
    if (norms) set_head_norms(model);
    ASSIGN_OR_RETURN(const bool bias, read_flag(config, "attention_bias", false));
    if (bias) add_qkv_biases(model);
    // Layers after the last one predict further tokens; they are not part of the model itself.
    model->passed_over.push_back(layer_prefix(model->layers.size()));
    return {};
}

} // namespace batchllm
