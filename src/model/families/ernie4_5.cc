// ERNIE 4.5: Llama with a rope over pairs of neighbours. Its sizes with experts have a softmax router
// with a correction, and shared experts.
#include <algorithm>

#include "model/config.h"
#include "model/families/families.h"

namespace batchllm {
namespace {

Status describe_both(const JsonValue &config, ConfigDefaults defaults, DecoderShape *shape,
                     Model *model) {
    defaults.vocabulary = 103424;
    defaults.max_positions = 131072;
    defaults.epsilon = 1e-5;
    defaults.bos = 1;
    defaults.eos = {2};
    defaults.tied = true;
    ASSIGN_OR_RETURN(*shape, read_shape(config, defaults, model));
    describe_decoder(*shape, model);
    RopeDefaults rope;
    rope.theta = 500000;
    rope.pairs = true;
    return set_rope(config, rope, model);
}

// The layers with experts: every "moe_layer_interval"-th from "moe_layer_start_index" to
// "moe_layer_end_index".
Result<std::vector<bool>> read_ernie_layers(const JsonValue &config, size_t layers) {
    const auto last = static_cast<int32_t>(layers) - 1;
    ASSIGN_OR_RETURN(const int32_t step, read_count(config, "moe_layer_interval", 1, 4096));
    ASSIGN_OR_RETURN(const int32_t begin,
                     read_count_or_zero(config, "moe_layer_start_index", 1, 4096));
    int64_t end = -1; // the last layer
    if (const auto given = config.given("moe_layer_end_index")) {
        ASSIGN_OR_RETURN(end, given->integer(-1, 4096));
    }
    if (end < 0) end = last;
    std::vector<bool> sparse(layers);
    for (int32_t i = begin; i <= std::min<int64_t>(end, last); ++i) {
        sparse[static_cast<size_t>(i)] = (i + 1) % step == 0;
    }
    return sparse;
}

Status set_ernie_experts(const JsonValue &config, Model *model) {
    ASSIGN_OR_RETURN(const ExpertCounts counts,
                     read_expert_counts(config, {"moe_num_experts", "num_experts"}, 64, 6, *model,
                                        known_key(config, "moe_k", "num_experts_per_tok")));
    ExpertsShape experts;
    experts.count = counts.all;
    ASSIGN_OR_RETURN(experts.width, read_count(config, "moe_intermediate_size", 1536, 1 << 20));
    ASSIGN_OR_RETURN(const int32_t shared,
                     read_count_or_zero(config, "moe_num_shared_experts", 2, 64));
    // A sum of the chosen scores below "moe_norm_min", which is tiny, does not occur: one of them is
    // the largest of a softmax, but for a correction.
    Router router;
    router.chosen = counts.chosen;
    router.normalised = true;
    ASSIGN_OR_RETURN(const std::vector<bool> sparse,
                     read_ernie_layers(config, model->layers.size()));
    for (size_t i = 0; i < sparse.size(); ++i) {
        if (!sparse[i]) continue;
        const std::string prefix = layer_prefix(i) + "mlp.";
        Layer &layer = model->layers[i];
        set_experts(prefix, experts, router, model->hidden, &layer);
        set_correction(prefix + "moe_statics.e_score_correction_bias", &layer);
        layer.experts()->router.correction.stored_stack = 1; // [1, experts]
        if (shared == 0) continue;
        add_shared_expert(
            named_feed_forward(prefix + "shared_experts.", shared * experts.width, model->hidden),
            &layer);
    }
    return {};
}

} // namespace

Status describe_ernie4_5(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.hidden = 1024;
    defaults.intermediate = 3072;
    defaults.layers = 18;
    defaults.heads = 16;
    defaults.kv_heads = 2;
    defaults.head_dim = 128;
    DecoderShape shape;
    RETURN_IF_ERROR(describe_both(config, defaults, &shape, model));
    RETURN_IF_ERROR(set_activation(config, "hidden_act", Activation::silu, model));
    ASSIGN_OR_RETURN(const bool biases, read_flag(config, "use_bias", false));
    if (!biases) return {};
    add_qkv_biases(model);
    add_output_biases(model);
    add_feed_forward_biases(model);
    return {};
}

Status describe_ernie4_5_moe(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.hidden = 2560;
    defaults.intermediate = 12288;
    defaults.layers = 28;
    defaults.heads = 20;
    defaults.kv_heads = 4;
    DecoderShape shape;
    RETURN_IF_ERROR(describe_both(config, defaults, &shape, model));
    RETURN_IF_ERROR(set_ernie_experts(config, model));
    RETURN_IF_ERROR(set_activation(config, "hidden_act", Activation::silu, model));
    pass_over("mtp_", model); // predict further tokens
    return refuse_flag(config, "use_bias", "experts with biases are not supported");
}

} // namespace batchllm
