// Phi-3.5-MoE: Mixtral with LayerNorms, biases of attention and of the head, longrope with a scale for
// each of its lists, and a sparse mixer as the router.
#include "model/config.h"
#include "model/families/families.h"

namespace batchllm {
namespace {

Status set_mixed_experts(const JsonValue &config, int32_t width, Model *model) {
    ASSIGN_OR_RETURN(
        const ExpertCounts counts,
        read_expert_counts(config, {"num_local_experts", "num_experts"}, 16, 2, *model));
    if (counts.chosen != 2) {
        return config.at("num_experts_per_tok")->unsupported("a sparse mixer chooses two");
    }
    const ExpertsShape experts{counts.all, width, "w1", "w3", "w2"};
    Router router;
    router.kind = RouterKind::sparse_mixer;
    router.chosen = counts.chosen;
    ASSIGN_OR_RETURN(const double jitter, read_number(config, "router_jitter_noise", 0.01, 0, 1e6));
    router.jitter = static_cast<float>(jitter);
    for (size_t i = 0; i < model->layers.size(); ++i) {
        set_experts(layer_prefix(i) + "block_sparse_moe.", experts, router, model->hidden,
                    &model->layers[i]);
    }
    return {};
}

} // namespace

Status describe_phimoe(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 32064;
    defaults.intermediate = 6400;
    defaults.kv_heads = 8;
    defaults.max_positions = 131072;
    defaults.epsilon = 1e-5;
    defaults.bos = 1;
    defaults.eos = {2};
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    set_layer_norms(model);
    RopeDefaults rope;
    rope.theta = 1000000;
    rope.mscales = true;
    RETURN_IF_ERROR(set_rope(config, rope, model));
    RETURN_IF_ERROR(set_mixed_experts(config, shape.intermediate, model));
    RETURN_IF_ERROR(set_activation(config, "hidden_act", Activation::silu, model));
    RETURN_IF_ERROR(set_attention_biases(config, false, model));
    ASSIGN_OR_RETURN(const bool bias, read_flag(config, "lm_head_bias", false));
    if (bias) add_bias(&model->head);
    return set_window(config, 0, model);
}

} // namespace batchllm
