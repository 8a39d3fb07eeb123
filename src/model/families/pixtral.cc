#include "model/families/pixtral.h"

namespace batchllm {
namespace {

constexpr float pixtral_epsilon = 1e-5F;

// Pairs turn by the patch's row with every other frequency, by its column with those between.
Status set_rope(const JsonValue &vision, int32_t head_dim, Tower *tower) {
    if (head_dim % 4 != 0) return vision.unsupported("heads must be multiples of 4");
    RopeConfig config;
    const JsonValue at = vision.given("rope_parameters").value_or(vision);
    ASSIGN_OR_RETURN(config.theta, read_number(at, "rope_theta", config.theta, 1, 1e18));
    const std::vector<float> all = rope_frequencies(config, head_dim);
    Rope rope;
    for (const uint8_t axis : {uint8_t{1}, uint8_t{2}}) {
        for (size_t i = axis - size_t{1}; i < all.size(); i += 2) {
            rope.frequencies.push_back(all[i]);
            rope.axes.push_back(axis);
        }
    }
    tower->ropes = {rope};
    return {};
}

// A norm, then merge * merge patches to one, then two matrices.
Status set_projector(const JsonValue &config, Model *model, Tower *tower) {
    if (const auto layer = config.given("vision_feature_layer")) {
        ASSIGN_OR_RETURN(const int64_t index, layer->integer(INT32_MIN, INT32_MAX));
        if (index != -1) return layer->unsupported("only the last layer's output is supported");
    }
    ASSIGN_OR_RETURN(const bool biases, read_flag(config, "multimodal_projector_bias", false));
    ASSIGN_OR_RETURN(const Activation activation,
                     read_activation(config, "projector_hidden_act", Activation::gelu));
    ASSIGN_OR_RETURN(tower->merge, read_count(config, "spatial_merge_size", 2, 16));
    const std::string prefix = "multi_modal_projector.";
    const int64_t rows = tower->hidden;
    Merger &merger = tower->merger;
    merger.norm = named_norm(NormKind::rms, prefix + "norm", rows, model->final_norm.epsilon);
    merger.projection = named_weight(prefix + "patch_merger.merging_layer", rows,
                                     rows * tower->merge * tower->merge);
    merger.by_channel = true;
    FeedForward &feed_forward = merger.feed_forward;
    feed_forward.width = model->hidden;
    feed_forward.activation = activation;
    feed_forward.up = named_weight(prefix + "linear_1", model->hidden, rows);
    feed_forward.down = named_weight(prefix + "linear_2", model->hidden, model->hidden);
    if (!biases) return {};
    add_bias(&feed_forward.up);
    add_bias(&feed_forward.down);
    return {};
}

} // namespace

Status describe_pixtral_tower(const JsonValue &config, const JsonValue &vision, Model *model,
                              Tower *tower) {
    if (const auto type = vision.given("model_type")) {
        ASSIGN_OR_RETURN(const std::string name, type->string());
        if (name != "pixtral") return type->unsupported("only pixtral is supported");
    }
    ASSIGN_OR_RETURN(tower->hidden, read_count(vision, "hidden_size", 1024, 1 << 16));
    ASSIGN_OR_RETURN(const int32_t width, read_count(vision, "intermediate_size", 4096, 1 << 20));
    ASSIGN_OR_RETURN(const int32_t layers, read_count(vision, "num_hidden_layers", 24, 512));
    ASSIGN_OR_RETURN(const int32_t heads, read_count(vision, "num_attention_heads", 16, 1024));
    ASSIGN_OR_RETURN(tower->channels, read_count(vision, "num_channels", 3, 3));
    ASSIGN_OR_RETURN(const Activation activation,
                     read_activation(vision, "hidden_act", Activation::gelu));
    ASSIGN_OR_RETURN(const int32_t head_dim,
                     read_count(vision, "head_dim", tower->hidden / heads, 1 << 16));
    if (head_dim * heads != tower->hidden) {
        return vision.unsupported("heads must be equal parts of hidden_size");
    }
    tower->prefixes = {"vision_tower.", "multi_modal_projector."};
    RETURN_IF_ERROR(set_patch(vision, "vision_tower.patch_conv", 16, tower));
    RETURN_IF_ERROR(set_rope(vision, head_dim, tower));
    const int64_t rows = tower->hidden;
    tower->before = named_norm(NormKind::rms, "vision_tower.ln_pre", rows, pixtral_epsilon);
    for (int32_t i = 0; i < layers; ++i) {
        const std::string prefix = "vision_tower.transformer.layers." + std::to_string(i) + ".";
        Layer layer = tower_layer(tower->hidden, heads, width, activation);
        layer.before_attention =
            named_norm(NormKind::rms, prefix + "attention_norm", rows, pixtral_epsilon);
        layer.before_feed_forward =
            named_norm(NormKind::rms, prefix + "ffn_norm", rows, pixtral_epsilon);
        Attention &attention = *layer.attention();
        attention.rope = 0;
        attention.q = named_weight(prefix + "attention.q_proj", rows, rows);
        attention.k = named_weight(prefix + "attention.k_proj", rows, rows);
        attention.v = named_weight(prefix + "attention.v_proj", rows, rows);
        attention.o = named_weight(prefix + "attention.o_proj", rows, rows);
        FeedForward named = named_feed_forward(prefix + "feed_forward.", width, rows);
        named.activation = activation;
        layer.feed = std::move(named);
        tower->layers.push_back(std::move(layer));
    }
    return set_projector(config, model, tower);
}

} // namespace batchllm
