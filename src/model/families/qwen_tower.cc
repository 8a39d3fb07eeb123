#include "model/families/qwen_tower.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace batchllm {
namespace {

constexpr int32_t most_hidden = 1 << 16;
constexpr int32_t most_tower_layers = 512;
constexpr float qwen_tower_epsilon = 1e-6F;

struct TowerShape {
    int32_t layers = 0, heads = 0, width = 0, outputs = 0;
    Activation activation = Activation::silu;
};

// What the generations call the size of a patch, and that of the outputs.
struct SizeKeys {
    const char *hidden = "hidden_size", *outputs = "out_hidden_size";
};

// Half of a head's pairs turn by the patch's row, the others by its column, with the same frequencies.
Status set_axial_rope(const JsonValue &vision, int32_t head_dim, Tower *tower) {
    if (head_dim % 4 != 0) return vision.unsupported("heads must be multiples of 4");
    RopeConfig config;
    if (const auto rope = vision.given("rope_parameters")) {
        ASSIGN_OR_RETURN(config.theta, read_number(*rope, "rope_theta", config.theta, 1, 1e18));
        if (const auto type = rope->given("rope_type")) {
            ASSIGN_OR_RETURN(const std::string name, type->string());
            if (name != "axial") return type->unsupported("only axial is supported");
        }
    }
    const std::vector<float> one = rope_frequencies(config, head_dim / 2);
    Rope rope;
    for (const uint8_t axis : {uint8_t{1}, uint8_t{2}}) {
        rope.frequencies.insert(rope.frequencies.end(), one.begin(), one.end());
        rope.axes.insert(rope.axes.end(), one.size(), axis);
    }
    tower->ropes = {rope};
    return {};
}

// Layers with everything but their norms' kind and their feed-forwards, which each generation has of its own. A width of 0 is not
// read.
Result<TowerShape> read_tower_shape(const JsonValue &vision, const TowerShape &defaults,
                                    int32_t hidden, int32_t patch_size, const SizeKeys &keys,
                                    Tower *tower) {
    TowerShape shape;
    ASSIGN_OR_RETURN(tower->hidden, read_count(vision, keys.hidden, hidden, most_hidden));
    ASSIGN_OR_RETURN(shape.layers, read_count(vision, "depth", defaults.layers, most_tower_layers));
    ASSIGN_OR_RETURN(shape.heads, read_count(vision, "num_heads", defaults.heads, 1024));
    if (defaults.width > 0) {
        ASSIGN_OR_RETURN(shape.width,
                         read_count(vision, "intermediate_size", defaults.width, 1 << 20));
        ASSIGN_OR_RETURN(shape.activation,
                         read_activation(vision, "hidden_act", defaults.activation));
    }
    ASSIGN_OR_RETURN(shape.outputs, read_count(vision, keys.outputs, defaults.outputs, 1 << 20));
    if (tower->hidden % shape.heads != 0) {
        return vision.fail(std::string(keys.hidden) + " must be a multiple of num_heads");
    }
    ASSIGN_OR_RETURN(tower->channels, read_count(vision, "in_channels", 3, 3));
    ASSIGN_OR_RETURN(tower->frames, read_count(vision, "temporal_patch_size", 2, 16));
    ASSIGN_OR_RETURN(tower->merge, read_count(vision, "spatial_merge_size", 2, 16));
    tower->in_blocks = true;
    RETURN_IF_ERROR(set_patch(vision, "visual.patch_embed.proj", patch_size, tower));
    RETURN_IF_ERROR(set_axial_rope(vision, tower->hidden / shape.heads, tower));
    tower->prefixes = {"visual."};

    const int64_t rows = tower->hidden;
    for (int32_t i = 0; i < shape.layers; ++i) {
        const std::string prefix = "visual.blocks." + std::to_string(i) + ".";
        Layer layer = tower_layer(tower->hidden, shape.heads, shape.width, shape.activation);
        Attention &attention = *layer.attention();
        attention.rope = 0;
        int64_t first = 0;
        for (Weight *weight : {&attention.q, &attention.k, &attention.v}) {
            *weight = fused_weight(prefix + "attn.qkv", 3 * rows, first, rows, rows);
            add_bias(weight);
            weight->bias.stored_rows = 3 * rows;
            weight->bias.first_row = first;
            first += rows;
        }
        attention.o = weight_with_bias(prefix + "attn.proj", rows, rows);
        tower->layers.push_back(std::move(layer));
    }
    return shape;
}

// The feed-forward of joined patches, exact gelu between its two matrices.
FeedForward merging(const std::string &up, const std::string &down, int32_t outputs,
                    const Tower &tower) {
    const int32_t joined = tower.hidden * tower.merge * tower.merge;
    FeedForward feed_forward;
    feed_forward.width = joined;
    feed_forward.activation = Activation::gelu;
    feed_forward.up = weight_with_bias(up, joined, joined);
    feed_forward.down = weight_with_bias(down, outputs, joined);
    return feed_forward;
}

// How many pairs of the text model's rope turn by time, row and column.
Result<std::array<int32_t, 3>> read_sections(const JsonValue &config,
                                             std::array<int32_t, 3> sections) {
    const JsonValue text = config.given("text_config").value_or(config);
    auto rope = text.given("rope_parameters");
    if (!rope) rope = text.given("rope_scaling");
    if (!rope) return sections;
    const auto list = rope->given("mrope_section");
    if (!list) return sections;
    ASSIGN_OR_RETURN(const auto numbers, list->elements());
    if (numbers.size() != 3) return list->unsupported("must have three numbers");
    for (size_t i = 0; i < 3; ++i) {
        ASSIGN_OR_RETURN(const int64_t count, numbers[i].integer(0, 1 << 16));
        sections[i] = static_cast<int32_t>(count);
    }
    return sections;
}

// The axes by turns, as far as row and column have sections; the other pairs turn by time.
Status set_interleaved_axes(const JsonValue &config, std::array<int32_t, 3> defaults,
                            Model *model) {
    ASSIGN_OR_RETURN(const auto sections, read_sections(config, defaults));
    for (Rope &rope : model->ropes) {
        rope.axes.assign(rope.frequencies.size(), 0);
        for (uint8_t axis : {uint8_t{1}, uint8_t{2}}) {
            const size_t end =
                std::min<size_t>(3 * static_cast<size_t>(sections[axis]), rope.axes.size());
            for (size_t i = axis; i < end; i += 3) rope.axes[i] = axis;
        }
    }
    return {};
}

// One axis after another.
Status set_axes_in_turn(const JsonValue &config, std::array<int32_t, 3> defaults, Model *model) {
    ASSIGN_OR_RETURN(const auto sections, read_sections(config, defaults));
    for (Rope &rope : model->ropes) {
        rope.axes.clear();
        for (uint8_t axis = 0; axis < 3; ++axis) {
            rope.axes.insert(rope.axes.end(), static_cast<size_t>(sections[axis]), axis);
        }
        if (rope.axes.size() != rope.frequencies.size()) {
            return config.unsupported("mrope_section must have as many pairs as the rope");
        }
    }
    return {};
}

Result<TowerShape> describe_with_positions(const JsonValue &vision, Tower *tower) {
    const TowerShape defaults{27, 16, 4304, 3584, Activation::gelu_tanh};
    ASSIGN_OR_RETURN(const TowerShape shape,
                     read_tower_shape(vision, defaults, 1152, 16, {}, tower));
    const int64_t rows = tower->hidden;
    add_bias(&tower->patch);
    ASSIGN_OR_RETURN(const int32_t positions,
                     read_count(vision, "num_position_embeddings", 2304, 1 << 20));
    tower->side = static_cast<int32_t>(std::lround(std::sqrt(static_cast<double>(positions))));
    if (tower->side * tower->side != positions) {
        return vision.unsupported("num_position_embeddings must be a square");
    }
    tower->interpolated = true;
    tower->positions = named_weight("visual.pos_embed", positions, rows).values;
    for (size_t i = 0; i < tower->layers.size(); ++i) {
        const std::string prefix = "visual.blocks." + std::to_string(i) + ".";
        Layer &layer = tower->layers[i];
        layer.before_attention = layer_norm(prefix + "norm1", rows, qwen_tower_epsilon);
        layer.before_feed_forward = layer_norm(prefix + "norm2", rows, qwen_tower_epsilon);
        layer.feed_forward()->up = weight_with_bias(prefix + "mlp.linear_fc1", shape.width, rows);
        layer.feed_forward()->down = weight_with_bias(prefix + "mlp.linear_fc2", rows, shape.width);
    }
    tower->merger.norm = layer_norm("visual.merger.norm", rows, qwen_tower_epsilon);
    tower->merger.feed_forward =
        merging("visual.merger.linear_fc1", "visual.merger.linear_fc2", shape.outputs, *tower);
    return shape;
}

Status add_deepstack(const JsonValue &vision, const TowerShape &shape, Tower *tower) {
    std::vector<int32_t> layers = {8, 16, 24};
    if (const auto list = vision.given("deepstack_visual_indexes")) {
        ASSIGN_OR_RETURN(const auto numbers, list->elements());
        layers.clear();
        for (const JsonValue &number : numbers) {
            ASSIGN_OR_RETURN(const int64_t layer, number.integer(0, shape.layers - 1));
            if (!layers.empty() && layer <= layers.back()) {
                return list->unsupported("must ascend");
            }
            layers.push_back(static_cast<int32_t>(layer));
        }
    } else if (layers.back() >= shape.layers) {
        return vision.unsupported("deepstack_visual_indexes, whose default is 8, 16 and 24");
    }
    for (size_t i = 0; i < layers.size(); ++i) {
        const std::string prefix = "visual.deepstack_merger_list." + std::to_string(i) + ".";
        DeepstackMerger &deepstack = tower->deepstack.emplace_back();
        deepstack.layer = layers[i];
        deepstack.merger.merged_norm =
            layer_norm(prefix + "norm", int64_t{tower->hidden} * tower->merge * tower->merge,
                       qwen_tower_epsilon);
        deepstack.merger.feed_forward =
            merging(prefix + "linear_fc1", prefix + "linear_fc2", shape.outputs, *tower);
    }
    return {};
}

// x * sigmoid(1.702 x) = silu(1.702 x) / 1.702: a feed-forward of silu whose matrices have these multipliers.
void add_quick_gelu(FeedForward *feed_forward) {
    constexpr float quick = 1.702F;
    feed_forward->activation = Activation::silu;
    feed_forward->up.values.factor = feed_forward->up.bias.factor = quick;
    feed_forward->down.values.factor = 1 / quick;
}

} // namespace

Status describe_qwen2_tower(const JsonValue &config, const JsonValue &vision, Model *model,
                            Tower *tower) {
    const TowerShape defaults{32, 16, 0, 3584, Activation::silu};
    ASSIGN_OR_RETURN(TowerShape shape, read_tower_shape(vision, defaults, 1280, 14,
                                                        {"embed_dim", "hidden_size"}, tower));
    ASSIGN_OR_RETURN(const int32_t times, read_count(vision, "mlp_ratio", 4, 64));
    const int64_t rows = tower->hidden, width = rows * times;
    bool quick = true;
    if (const auto given = vision.given("hidden_act")) {
        ASSIGN_OR_RETURN(const std::string name, given->string());
        quick = name == "quick_gelu";
    }
    if (!quick) {
        ASSIGN_OR_RETURN(shape.activation, read_activation(vision, "hidden_act", Activation::gelu));
    }
    for (size_t i = 0; i < tower->layers.size(); ++i) {
        const std::string prefix = "visual.blocks." + std::to_string(i) + ".";
        Layer &layer = tower->layers[i];
        layer.before_attention = layer_norm(prefix + "norm1", rows, qwen_tower_epsilon);
        layer.before_feed_forward = layer_norm(prefix + "norm2", rows, qwen_tower_epsilon);
        FeedForward &feed_forward = *layer.feed_forward();
        feed_forward.width = static_cast<int32_t>(width);
        feed_forward.activation = shape.activation;
        feed_forward.up = weight_with_bias(prefix + "mlp.fc1", width, rows);
        feed_forward.down = weight_with_bias(prefix + "mlp.fc2", rows, width);
        if (quick) add_quick_gelu(&feed_forward);
    }
    tower->merger.norm = layer_norm("visual.merger.ln_q", rows, qwen_tower_epsilon);
    tower->merger.feed_forward =
        merging("visual.merger.mlp.0", "visual.merger.mlp.2", shape.outputs, *tower);
    return set_axes_in_turn(config, {16, 24, 24}, model);
}

Status describe_qwen3_tower(const JsonValue &config, const JsonValue &vision, Model *model,
                            Tower *tower) {
    ASSIGN_OR_RETURN(const TowerShape shape, describe_with_positions(vision, tower));
    RETURN_IF_ERROR(add_deepstack(vision, shape, tower));
    return set_interleaved_axes(config, {24, 20, 20}, model);
}

Status describe_qwen3_5_tower(const JsonValue &config, const JsonValue &vision, Model *model,
                              Tower *tower) {
    RETURN_IF_ERROR(describe_with_positions(vision, tower).status());
    return set_interleaved_axes(config, {11, 11, 10}, model);
}

Status describe_qwen2_5_tower(const JsonValue &config, const JsonValue &vision, Model *model,
                              Tower *tower) {
    const TowerShape defaults{32, 16, 3420, 3584, Activation::silu};
    ASSIGN_OR_RETURN(const TowerShape shape,
                     read_tower_shape(vision, defaults, 3584, 14, {}, tower));
    const int64_t rows = tower->hidden;
    ASSIGN_OR_RETURN(const int32_t pixels, read_count(vision, "window_size", 112, 1 << 20));
    ASSIGN_OR_RETURN(const int32_t patch_size, read_count(vision, "patch_size", 14, 256));
    tower->window = pixels / tower->merge / patch_size * tower->merge;
    if (tower->window == 0) return vision.unsupported("window_size is less than a token's patches");
    std::vector<bool> whole(tower->layers.size(), false); // layers that see the whole picture
    const auto indexes = vision.given("fullatt_block_indexes");
    if (indexes) {
        ASSIGN_OR_RETURN(const auto numbers, indexes->elements());
        for (const JsonValue &number : numbers) {
            ASSIGN_OR_RETURN(const int64_t layer, number.integer(0, shape.layers - 1));
            whole[static_cast<size_t>(layer)] = true;
        }
    } else {
        for (size_t i = 7; i < std::min<size_t>(whole.size(), 32); i += 8) whole[i] = true;
    }
    for (size_t i = 0; i < tower->layers.size(); ++i) {
        const std::string prefix = "visual.blocks." + std::to_string(i) + ".";
        Layer &layer = tower->layers[i];
        layer.attention()->window = whole[i] ? 0 : tower->window;
        layer.before_attention =
            named_norm(NormKind::rms, prefix + "norm1", rows, qwen_tower_epsilon);
        layer.before_feed_forward =
            named_norm(NormKind::rms, prefix + "norm2", rows, qwen_tower_epsilon);
        FeedForward &feed_forward = *layer.feed_forward();
        feed_forward.gate = weight_with_bias(prefix + "mlp.gate_proj", shape.width, rows);
        feed_forward.up = weight_with_bias(prefix + "mlp.up_proj", shape.width, rows);
        feed_forward.down = weight_with_bias(prefix + "mlp.down_proj", rows, shape.width);
    }
    tower->merger.norm = named_norm(NormKind::rms, "visual.merger.ln_q", rows, qwen_tower_epsilon);
    tower->merger.feed_forward =
        merging("visual.merger.mlp.0", "visual.merger.mlp.2", shape.outputs, *tower);
    return set_axes_in_turn(config, {16, 24, 24}, model);
}

} // namespace batchllm
