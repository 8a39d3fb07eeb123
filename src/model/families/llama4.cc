// Llama 4: attention in chunks with a rope, and every few layers attention to everything without one,
// whose queries grow with their position; experts that are weighed before them, beside a shared one, in
// all layers or every other. From a checkpoint with a vision tower, only the text model is used.
#include "model/config.h"
#include "model/families/families.h"

namespace batchllm {
namespace {

// Layers with a rope are in chunks, unless "layer_types" says otherwise.
Status set_chunks(const JsonValue &config, Model *model) {
    const bool none = config.find("attention_chunk_size") && !config.given("attention_chunk_size");
    int32_t chunk = 0;
    if (!none) {
        ASSIGN_OR_RETURN(chunk, read_count(config, "attention_chunk_size", 8192, 1 << 30));
    }
    std::vector<bool> chunked;
    for (const Layer &layer : model->layers) chunked.push_back(layer.attention()->rope >= 0);
    if (const auto types = config.given("layer_types")) {
        ASSIGN_OR_RETURN(const auto list, read_layer_types(*types, chunked.size()));
        for (size_t i = 0; i < list.size(); ++i) {
            ASSIGN_OR_RETURN(const std::string type, list[i].string());
            chunked[i] = type == "chunked_attention";
            if (!chunked[i] && type != "full_attention") {
                return list[i].unsupported(
                    "only chunked_attention and full_attention are supported");
            }
            if (chunked[i] && chunk == 0) {
                return list[i].fail("the configuration has no attention_chunk_size");
            }
        }
    }
    for_each_attention(model, [&](size_t i, Attention &attention) {
        if (!chunked[i] || chunk == 0) return;
        attention.window = chunk;
        attention.chunked = true;
    });
    return {};
}

// Older files have a number.
Result<bool> read_tuning(const JsonValue &config) {
    const auto given = config.given("attn_temperature_tuning");
    if (!given || given->boolean().ok()) return read_flag(config, "attn_temperature_tuning", true);
    ASSIGN_OR_RETURN(const int64_t number, given->integer(0, 1 << 30));
    return number != 0;
}

// Norms of queries and keys where there is a rope, scales by position where there is none.
Status set_ropes(const JsonValue &config, Model *model) {
    RopeDefaults rope;
    rope.theta = 500000;
    rope.pairs = true;
    RETURN_IF_ERROR(set_rope(config, rope, model));
    ASSIGN_OR_RETURN(const auto roped, read_roped_layers(config, model->layers.size(), true));
    ASSIGN_OR_RETURN(const bool normed, read_flag(config, "use_qk_norm", true));
    ASSIGN_OR_RETURN(const bool tuned, read_tuning(config));
    ASSIGN_OR_RETURN(const double scale, read_number(config, "attn_scale", 0.1, 0, 1e6));
    ASSIGN_OR_RETURN(const int32_t period, read_count(config, "floor_scale", 8192, 1 << 30));
    for_each_attention(model, [&](size_t i, Attention &attention) {
        if (roped[i] && normed) {
            Norm norm;
            norm.kind = NormKind::rms;
            norm.epsilon = model->final_norm.epsilon;
            attention.q_norm = attention.k_norm = norm;
            attention.norm_turned = true;
        }
        if (roped[i]) return;
        attention.rope = -1;
        attention.long_scale = tuned ? static_cast<float>(scale) : 0;
        attention.long_period = period;
        attention.long_shift = 1;
    });
    return {};
}

// One entry per layer: the list "moe_layers", or every N-th.
Result<std::vector<bool>> read_llama4_layers(const JsonValue &config, size_t layers) {
    std::vector<bool> sparse(layers, false);
    if (const auto given = config.given("moe_layers")) {
        ASSIGN_OR_RETURN(const auto list, given->elements());
        for (const JsonValue &item : list) {
            ASSIGN_OR_RETURN(const int64_t layer,
                             item.integer(0, static_cast<int64_t>(layers) - 1));
            sparse[static_cast<size_t>(layer)] = true;
        }
        return sparse;
    }
    ASSIGN_OR_RETURN(const int32_t every,
                     read_count(config, "interleave_moe_layer_step", 1, 1 << 20));
    for (size_t i = 0; i < layers; ++i) sparse[i] = (i + 1) % static_cast<size_t>(every) == 0;
    return sparse;
}

Experts named_experts(const std::string &prefix, const ExpertCounts &counts, int32_t width,
                      int64_t hidden) {
    Experts experts;
    Router &router = experts.router;
    router.kind = RouterKind::sigmoid;
    router.chosen = counts.chosen;
    router.weighs_input = true;
    router.weight = named_weight(prefix + "router", counts.all, hidden);
    const TransposedStack both{prefix + "experts.gate_up_proj", counts.all, hidden,
                               2 * int64_t{width}};
    const TransposedStack down{prefix + "experts.down_proj", counts.all, width, hidden};
    for (int32_t e = 0; e < counts.all; ++e) {
        FeedForward &expert = experts.each.emplace_back();
        expert.width = width;
        expert.gate = rows_of_stack(both, e, 0, width);
        expert.up = rows_of_stack(both, e, width, width);
        expert.down = rows_of_stack(down, e, 0, hidden);
    }
    return experts;
}

Status set_feeds(const JsonValue &config, int32_t width, Model *model) {
    ASSIGN_OR_RETURN(const ExpertCounts counts,
                     read_expert_counts(config, {"num_local_experts"}, 16, 1, *model));
    ASSIGN_OR_RETURN(const int32_t dense,
                     read_count(config, "intermediate_size_mlp", 16384, 1 << 20));
    ASSIGN_OR_RETURN(const auto sparse, read_llama4_layers(config, model->layers.size()));
    for (size_t i = 0; i < sparse.size(); ++i) {
        Layer &layer = model->layers[i];
        const std::string prefix = layer_prefix(i) + "feed_forward.";
        if (!sparse[i]) {
            layer.feed = named_feed_forward(prefix, dense, model->hidden);
            continue;
        }
        layer.feed = named_experts(prefix, counts, width, model->hidden);
        add_shared_expert(named_feed_forward(prefix + "shared_expert.", width, model->hidden),
                          &layer);
    }
    return set_activation(config, "hidden_act", Activation::silu, model);
}

} // namespace

Status describe_llama4(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 202048;
    defaults.hidden = 5120;
    defaults.intermediate = 8192;
    defaults.layers = 48;
    defaults.heads = 40;
    defaults.kv_heads = 8;
    defaults.head_dim = 128;
    defaults.max_positions = 131072;
    defaults.epsilon = 1e-5;
    defaults.bos = 1;
    defaults.eos = {2};
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    RETURN_IF_ERROR(set_ropes(config, model));
    RETURN_IF_ERROR(set_chunks(config, model));
    RETURN_IF_ERROR(set_feeds(config, shape.intermediate, model));
    return set_attention_biases(config, false, model);
}

Status describe_llama4_vision(const JsonValue &config, Model *model) {
    RETURN_IF_ERROR(describe_text_part(config, describe_llama4, false, model));
    pass_over("vision_model.", model);
    return {};
}

} // namespace batchllm
