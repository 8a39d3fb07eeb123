// AFMoE (Arcee's Trinity): norms around both sublayers and of each head, an output gate of its own;
// layers with a window have a rope, the others none. A sigmoid router with a correction, shared
// experts; the first layers are dense.
#include <cmath>

#include "model/config.h"
#include "model/families/families.h"

namespace batchllm {
namespace {

void set_afmoe_layers(const DecoderShape &shape, Model *model) {
    for (size_t i = 0; i < model->layers.size(); ++i) {
        Layer &layer = model->layers[i];
        const auto norm = [&](const char *name) {
            return named_norm(NormKind::rms, layer_prefix(i) + name, model->hidden, shape.epsilon);
        };
        layer.after_attention = norm("post_attention_layernorm");
        layer.before_feed_forward = norm("pre_mlp_layernorm");
        layer.after_feed_forward = norm("post_mlp_layernorm");
        Attention &attention = *layer.attention();
        attention.gated = true;
        attention.gate = named_weight(layer_prefix(i) + "self_attn.gate_proj", attention.q_size(),
                                      model->hidden);
        if (attention.window == 0) attention.rope = -1;
    }
}

Status set_afmoe_experts(const JsonValue &config, Model *model) {
    ASSIGN_OR_RETURN(
        const ExpertCounts counts,
        read_expert_counts(config, {"num_experts", "num_local_experts"}, 64, 6, *model));
    ExpertsShape experts;
    experts.count = counts.all;
    ASSIGN_OR_RETURN(experts.width, read_count(config, "moe_intermediate_size", 1408, 1 << 20));
    ASSIGN_OR_RETURN(const int32_t shared, read_count(config, "num_shared_experts", 2, 64));
    ASSIGN_OR_RETURN(const int32_t dense, read_count_or_zero(config, "num_dense_layers", 1, 4096));
    ASSIGN_OR_RETURN(const Router router, read_sigmoid_router(config, counts, "route_scale", 1));
    for (const char *key : {"n_group", "topk_group"}) { // published, and always 1
        const auto groups = config.given(key);
        if (groups && !groups->integer(1, 1).ok()) {
            return groups->unsupported("groups of experts are not supported here");
        }
    }
    for (size_t i = static_cast<size_t>(dense); i < model->layers.size(); ++i) {
        const std::string prefix = layer_prefix(i) + "mlp.";
        Layer &layer = model->layers[i];
        set_experts_beside_shared(prefix, experts, router, "expert_bias", shared, model->hidden,
                                  &layer);
        layer.experts()->router.weight =
            named_weight(prefix + "router.gate", counts.all, model->hidden);
    }
    return {};
}

} // namespace

Status describe_afmoe(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 200192;
    defaults.hidden = 2048;
    defaults.intermediate = 6144;
    defaults.heads = 16;
    defaults.head_dim = 128;
    defaults.max_positions = 16384;
    defaults.epsilon = 1e-5;
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    ASSIGN_OR_RETURN(const int32_t window, read_window(config, 1024));
    RETURN_IF_ERROR(set_windows_but_every(config, window, "global_attn_every_n_layers", 4, model));
    RETURN_IF_ERROR(set_rope(config, {}, model));
    set_head_norms(model);
    RETURN_IF_ERROR(set_attention_biases(config, false, model));
    set_afmoe_layers(shape, model);
    RETURN_IF_ERROR(set_afmoe_experts(config, model));
    ASSIGN_OR_RETURN(const bool scaled, read_flag(config, "mup_enabled", false));
    if (scaled) {
        model->embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(model->hidden)));
    }
    return set_activation(config, "hidden_act", Activation::silu, model);
}

} // namespace batchllm
