// Qwen2-MoE and Qwen3-MoE: Qwen2 and Qwen3 with experts in most layers. Qwen2-MoE also has a shared
// expert with its own gate. Mellum 2: Qwen3-MoE with windows and a rope of their own on some layers.
#include "model/families/qwen_moe.h"

#include "model/families/families.h"

namespace batchllm {
namespace {

// The differences between the two.
struct QwenMoe {
    ConfigDefaults defaults;
    QwenExperts experts;
};

// Layers with experts: every "decoder_sparse_step"-th, except those in "mlp_only_layers".
Result<std::vector<bool>> read_qwen_moe_layers(const JsonValue &config, size_t layers) {
    ASSIGN_OR_RETURN(const int32_t step, read_count(config, "decoder_sparse_step", 1, 4096));
    std::vector<bool> sparse(layers);
    for (size_t i = 0; i < layers; ++i) sparse[i] = (i + 1) % static_cast<size_t>(step) == 0;
    if (const auto dense = config.given("mlp_only_layers")) {
        ASSIGN_OR_RETURN(const auto list, dense->elements());
        for (const JsonValue &item : list) {
            ASSIGN_OR_RETURN(const int64_t layer, item.integer(0, 1 << 20));
            if (static_cast<size_t>(layer) < layers) sparse[static_cast<size_t>(layer)] = false;
        }
    }
    return sparse;
}

// Everything except windows, and the parts of attention besides its products.
Status describe_both(const JsonValue &config, const QwenMoe &kind, Model *model) {
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, kind.defaults, model));
    describe_decoder(shape, model);
    RETURN_IF_ERROR(set_rope(config, {}, model));
    RETURN_IF_ERROR(set_sparse_layers(config, kind.experts, model));
    return set_activation(config, "hidden_act", Activation::silu, model);
}

} // namespace

namespace {

Status set_experts_of(const std::vector<bool> &sparse, const JsonValue &config,
                      const QwenExperts &defaults, Model *model) {
    ASSIGN_OR_RETURN(const ExpertCounts counts,
                     read_expert_counts(config, {"num_experts", "num_local_experts"}, defaults.all,
                                        defaults.chosen, *model));
    ExpertsShape experts;
    experts.count = counts.all;
    ASSIGN_OR_RETURN(experts.width,
                     read_count(config, "moe_intermediate_size", defaults.width, 1 << 20));
    Router router;
    router.chosen = counts.chosen;
    ASSIGN_OR_RETURN(router.normalised, read_flag(config, "norm_topk_prob", defaults.normalised));
    for (size_t i = 0; i < sparse.size(); ++i) {
        if (!sparse[i]) continue;
        set_experts(layer_prefix(i) + "mlp.", experts, router, model->hidden, &model->layers[i]);
    }
    return {};
}

} // namespace

Status set_sparse_layers(const JsonValue &config, const QwenExperts &defaults, Model *model) {
    ASSIGN_OR_RETURN(const std::vector<bool> sparse,
                     read_qwen_moe_layers(config, model->layers.size()));
    return set_experts_of(sparse, config, defaults, model);
}

Status set_shared_experts(const JsonValue &config, int32_t width, Model *model) {
    ASSIGN_OR_RETURN(width, read_count(config, "shared_expert_intermediate_size", width, 1 << 20));
    for (size_t i = 0; i < model->layers.size(); ++i) {
        Layer &layer = model->layers[i];
        if (layer.experts() == nullptr) continue;
        const std::string prefix = layer_prefix(i) + "mlp.";
        SharedExperts &both = add_shared_expert(
            named_feed_forward(prefix + "shared_expert.", width, model->hidden), &layer);
        both.gate = named_weight(prefix + "shared_expert_gate", 1, model->hidden);
    }
    return set_activation(config, "hidden_act", Activation::silu, model);
}

Status describe_qwen2_moe(const JsonValue &config, Model *model) {
    QwenMoe kind{{}, {1408, 60, 4}};
    kind.defaults.vocabulary = 151936;
    kind.defaults.hidden = 2048;
    kind.defaults.intermediate = 5632;
    kind.defaults.layers = 24;
    kind.defaults.heads = 16;
    kind.defaults.kv_heads = 16;
    kind.defaults.max_positions = 32768;
    RETURN_IF_ERROR(describe_both(config, kind, model));
    RETURN_IF_ERROR(set_shared_experts(config, 5632, model));
    ASSIGN_OR_RETURN(const bool bias, read_flag(config, "qkv_bias", true));
    if (bias) add_qkv_biases(model);
    ASSIGN_OR_RETURN(const bool used, read_flag(config, "use_sliding_window", false));
    if (!used) return {};
    ASSIGN_OR_RETURN(const int32_t window, read_window(config, 4096));
    ASSIGN_OR_RETURN(const int32_t windowed,
                     read_count_or_zero(config, "max_window_layers", 28, 1 << 20));
    return set_windows(
        config, window,
        [&](size_t layer) { return layer % 2 == 0 && static_cast<int32_t>(layer) < windowed; },
        model);
}

Status describe_qwen3_moe(const JsonValue &config, Model *model) {
    QwenMoe kind{{}, {768, 128, 8}};
    kind.defaults.vocabulary = 151936;
    kind.defaults.hidden = 2048;
    kind.defaults.intermediate = 6144;
    kind.defaults.layers = 24;
    kind.defaults.kv_heads = 4;
    kind.defaults.max_positions = 32768;
    RETURN_IF_ERROR(describe_both(config, kind, model));
    set_head_norms(model);
    RETURN_IF_ERROR(set_attention_biases(config, false, model));
    ASSIGN_OR_RETURN(const bool used, read_flag(config, "use_sliding_window", false));
    if (!used) return {};
    return set_window(config, 4096, model);
}

Status describe_mellum(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 98304;
    defaults.hidden = 2304;
    defaults.intermediate = 7168;
    defaults.layers = 28;
    defaults.kv_heads = 4;
    defaults.head_dim = 128;
    defaults.max_positions = 131072;
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    set_head_norms(model);
    RETURN_IF_ERROR(set_attention_biases(config, false, model));
    std::vector<bool> sparse(model->layers.size(), true);
    if (config.given("mlp_layer_types")) {
        ASSIGN_OR_RETURN(sparse, read_layers_with_experts(config, sparse.size()));
    }
    RETURN_IF_ERROR(set_experts_of(sparse, config, {896, 64, 8, true}, model));
    RETURN_IF_ERROR(set_activation(config, "hidden_act", Activation::silu, model));
    ASSIGN_OR_RETURN(const int32_t window, read_window(config, 1024));
    RETURN_IF_ERROR(set_windows(
        config, window, [](size_t) { return false; }, model));
    RopeDefaults full, windowed;
    full.theta = 500000;
    full.partial = windowed.partial = true;
    ASSIGN_OR_RETURN(LayerRopes ropes, read_layer_ropes(config, *model, full, windowed, nullptr));
    set_layer_ropes(std::move(ropes), model);
    pass_over("mtp.", model); // predict further tokens
    return {};
}

} // namespace batchllm
