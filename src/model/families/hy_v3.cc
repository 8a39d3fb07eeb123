// Hunyuan 3 (Hy3): norms of each head; a sigmoid router with a correction, a shared expert; the first
// layers are dense.
#include "model/config.h"
#include "model/families/families.h"

namespace batchllm {
namespace {

Status set_hy3_experts(const JsonValue &config, Model *model) {
    ASSIGN_OR_RETURN(
        const ExpertCounts counts,
        read_expert_counts(config, {"num_experts", "num_local_experts"}, 192, 8, *model));
    ExpertsShape experts;
    experts.count = counts.all;
    ASSIGN_OR_RETURN(experts.width, read_count(config, "moe_intermediate_size", 1536, 1 << 20));
    ASSIGN_OR_RETURN(const int32_t shared, read_count(config, "num_shared_experts", 1, 64));
    ASSIGN_OR_RETURN(const Router router,
                     read_sigmoid_router(config, counts, "router_scaling_factor", 2.826));
    ASSIGN_OR_RETURN(const auto sparse, read_layers_with_experts(config, model->layers.size()));
    for (size_t i = 0; i < sparse.size(); ++i) {
        if (!sparse[i]) continue;
        const std::string prefix = layer_prefix(i) + "mlp.";
        Layer &layer = model->layers[i];
        set_experts(prefix, experts, router, model->hidden, &layer);
        layer.experts()->router.weight =
            named_weight(prefix + "router.gate", counts.all, model->hidden);
        set_correction(prefix + "expert_bias", &layer);
        add_shared_expert(
            named_feed_forward(prefix + "shared_mlp.", shared * experts.width, model->hidden),
            &layer);
    }
    return {};
}

} // namespace

Status describe_hy_v3(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 120832;
    defaults.intermediate = 13312;
    defaults.layers = 80;
    defaults.heads = 64;
    defaults.kv_heads = 8;
    defaults.head_dim = 128;
    defaults.max_positions = 131072;
    defaults.epsilon = 1e-5;
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    RopeDefaults rope;
    rope.theta = 11158840;
    RETURN_IF_ERROR(set_rope(config, rope, model));
    set_head_norms(model);
    RETURN_IF_ERROR(set_attention_biases(config, false, model));
    RETURN_IF_ERROR(refuse_flag(config, "mlp_bias", "experts with biases are not supported"));
    RETURN_IF_ERROR(set_hy3_experts(config, model));
    // The layer after the last one predicts further tokens.
    model->passed_over.push_back(layer_prefix(model->layers.size()));
    return set_activation(config, "hidden_act", Activation::silu, model);
}

} // namespace batchllm
