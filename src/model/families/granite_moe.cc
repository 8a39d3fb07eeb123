// Granite 3 MoE: Granite with experts in every layer, stored in two tensors per layer; and a
// variant with a feed-forward beside them.
#include "model/families/families.h"
#include "model/families/granite.h"

namespace batchllm {
namespace {

// Rows [first, first + rows) of matrix `index` of a stack of `count`.
Weight stacked_weight(const std::string &prefix, int32_t count, int32_t index, int64_t stored,
                      int64_t first, int64_t rows, int64_t columns) {
    Weight weight = fused_weight(prefix, stored, index * stored + first, rows, columns);
    weight.values.stored_stack = count;
    return weight;
}

} // namespace

Status set_granite_experts(const JsonValue &config, Model *model) {
    ASSIGN_OR_RETURN(
        const ExpertCounts counts,
        read_expert_counts(config, {"num_local_experts", "num_experts"}, 8, 2, *model));
    Router router;
    router.chosen = counts.chosen;
    router.normalised = true;
    ExpertsShape experts;
    experts.count = counts.all;
    const int64_t hidden = model->hidden;
    for (size_t i = 0; i < model->layers.size(); ++i) {
        Layer &layer = model->layers[i];
        experts.width = layer.feed_forward()->width;
        const std::string prefix = layer_prefix(i) + "block_sparse_moe.";
        set_experts(prefix, experts, router, hidden, &layer);
        layer.experts()->router.weight = named_weight(prefix + "router.layer", counts.all, hidden);
        const int64_t width = experts.width;
        for (int32_t e = 0; e < counts.all; ++e) {
            FeedForward &expert = layer.experts()->each[static_cast<size_t>(e)];
            const std::string input = prefix + "input_linear";
            expert.gate = stacked_weight(input, counts.all, e, 2 * width, 0, width, hidden);
            expert.up = stacked_weight(input, counts.all, e, 2 * width, width, width, hidden);
            expert.down =
                stacked_weight(prefix + "output_linear", counts.all, e, hidden, 0, hidden, width);
        }
    }
    return set_activation(config, "hidden_act", Activation::silu, model);
}

void set_shared_feed_forward(int32_t width, Model *model) {
    const int64_t hidden = model->hidden;
    for (size_t i = 0; i < model->layers.size(); ++i) {
        const std::string prefix = layer_prefix(i) + "shared_mlp.";
        FeedForward shared;
        shared.width = width;
        shared.gate = fused_weight(prefix + "input_linear", 2 * int64_t{width}, 0, width, hidden);
        shared.up = fused_weight(prefix + "input_linear", 2 * int64_t{width}, width, width, hidden);
        shared.down = named_weight(prefix + "output_linear", hidden, width);
        Layer &layer = model->layers[i];
        if (layer.experts() != nullptr) {
            add_shared_expert(std::move(shared), &layer);
        } else {
            layer.feed = std::move(shared);
        }
    }
}

Status describe_granite_moe(const JsonValue &config, Model *model) {
    RETURN_IF_ERROR(describe_granite(config, model));
    return set_granite_experts(config, model);
}

Status describe_granite_moe_shared(const JsonValue &config, Model *model) {
    RETURN_IF_ERROR(describe_granite_moe(config, model));
    ASSIGN_OR_RETURN(const int32_t width,
                     read_count_or_zero(config, "shared_intermediate_size", 0, 1 << 20));
    if (width == 0) return {};
    set_shared_feed_forward(width, model);
    return set_activation(config, "hidden_act", Activation::silu, model);
}

} // namespace batchllm
