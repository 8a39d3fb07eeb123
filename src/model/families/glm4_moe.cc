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
    ASSIGN_OR_RETURN(
        const ExpertCounts counts,
        read_expert_counts(config, {"n_routed_experts", "num_local_experts"}, 128, 8, *model));
    ASSIGN_OR_RETURN(const Router router, read_grouped_router(config, counts));
    ExpertsShape experts;
    experts.count = counts.all;
    ASSIGN_OR_RETURN(experts.width, read_count(config, "moe_intermediate_size", 1408, 1 << 20));
    ASSIGN_OR_RETURN(const int32_t shared, read_count(config, "n_shared_experts", 1, 64));
    ASSIGN_OR_RETURN(const int32_t dense,
                     read_count_or_zero(config, "first_k_dense_replace", 1, 4096));
    for (size_t i = static_cast<size_t>(dense); i < model->layers.size(); ++i) {
        const std::string prefix = layer_prefix(i) + "mlp.";
        Layer &layer = model->layers[i];
        set_experts(prefix, experts, router, model->hidden, &layer);
        set_correction(prefix + "gate.e_score_correction_bias", &layer);
        add_shared_expert(
            named_feed_forward(prefix + "shared_experts.", shared * experts.width, model->hidden),
            &layer);
    }
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
