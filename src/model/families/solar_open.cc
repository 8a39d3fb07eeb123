// Solar Open: Llama with the experts of GLM-4.5 in every layer: a sigmoid router with a correction,
// groups, shared experts.
#include "model/config.h"
#include "model/families/families.h"

namespace batchllm {

Status describe_solar_open(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 196608;
    defaults.layers = 48;
    defaults.heads = 64;
    defaults.kv_heads = 8;
    defaults.head_dim = 128;
    defaults.max_positions = 131072;
    defaults.epsilon = 1e-5;
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    RopeDefaults rope;
    rope.theta = 1000000;
    RETURN_IF_ERROR(set_rope(config, rope, model));
    RETURN_IF_ERROR(refuse_flag(config, "use_qk_norm", "norms of heads are not supported here"));
    GroupedExperts experts;
    experts.counts = {128, 8};
    experts.width = 1280;
    experts.router.normalised = true;
    RETURN_IF_ERROR(set_grouped_experts(config, experts, model));
    RETURN_IF_ERROR(set_activation(config, "hidden_act", Activation::silu, model));
    ASSIGN_OR_RETURN(const bool bias, read_flag(config, "attention_bias", false));
    if (bias) add_qkv_biases(model);
    return {};
}

} // namespace batchllm
