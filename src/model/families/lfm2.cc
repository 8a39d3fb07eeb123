// LFM2: short convolutions in most layers, attention with head norms in the others. Dense, or
// (LFM2-8B-A1B) with experts in all layers except the first ones.
#include <vector>

#include "model/config.h"
#include "model/families/families.h"

namespace batchllm {
namespace {

constexpr int32_t most_intermediate = 1 << 20;

ConfigDefaults common_defaults() {
    ConfigDefaults defaults;
    defaults.vocabulary = 65536;
    defaults.layers = 32;
    defaults.heads = 32;
    defaults.kv_heads = 8;
    defaults.max_positions = 128000;
    defaults.epsilon_key = "norm_eps";
    defaults.epsilon = 1e-5;
    defaults.tied = true;
    defaults.bos = 1;
    defaults.eos = {2};
    return defaults;
}

// There are two spellings; the published one takes precedence.
Status read_tied(const JsonValue &config, Model *model) {
    ASSIGN_OR_RETURN(model->tied, read_flag(config, "tie_embedding", model->tied));
    return {};
}

// Keys of the first implementation, which transformers does not read. A value other than the one
// computed is an error instead of being ignored silently.
Status check_other_keys(const JsonValue &config, double epsilon) {
    for (const char *key : {"block_use_swiglu", "use_pos_enc"}) {
        ASSIGN_OR_RETURN(const bool yes, read_flag(config, key, true));
        if (!yes) return config.at(key)->unsupported("only true is supported");
    }
    const auto other = config.given("block_norm_eps");
    if (!other) return {};
    ASSIGN_OR_RETURN(const double value, other->number(0, 1));
    if (value == epsilon) return {};
    return other->fail(
        "differs from norm_eps (1e-5 if absent): make them equal, or remove this key");
}

// The width of feed-forwards as config.json states it, or as the first implementation derived it
// from that.
Result<int32_t> read_intermediate(const JsonValue &config, int32_t stated) {
    const char *key = config.given("block_ff_dim") ? "block_ff_dim" : "intermediate_size";
    ASSIGN_OR_RETURN(stated, read_count(config, key, stated, most_intermediate));
    ASSIGN_OR_RETURN(const bool adjusted, read_flag(config, "block_auto_adjust_ff_dim", true));
    if (!adjusted) return stated;
    int64_t width = int64_t{2} * stated / 3;
    const auto factor = config.find("block_ffn_dim_multiplier");
    if (!factor || !factor->is_null()) { // null: no rounding either
        ASSIGN_OR_RETURN(const double times,
                         read_number(config, "block_ffn_dim_multiplier", 1, 0, 1e3));
        ASSIGN_OR_RETURN(const int32_t multiple,
                         read_count(config, "block_multiple_of", 256, most_intermediate));
        width = static_cast<int64_t>(times * static_cast<double>(width));
        width = (width + multiple - 1) / multiple * multiple;
    }
    if (width >= 1 && width <= most_intermediate) return static_cast<int32_t>(width);
    const auto given = config.given(key);
    return (given ? *given : config)
        .fail("block_auto_adjust_ff_dim makes it " + std::to_string(width));
}

// "theta" is the original spelling of rope_theta.
Status read_rope_keys(const JsonValue &config, Model *model) {
    RopeDefaults rope;
    rope.theta = 1e6;
    if (const auto theta = config.given("theta")) {
        ASSIGN_OR_RETURN(rope.theta, theta->number(1, 1e18));
        const auto object = config.given("rope_parameters");
        for (const JsonValue &of : {config, object && object->is_object() ? *object : config}) {
            ASSIGN_OR_RETURN(const double other,
                             read_number(of, "rope_theta", rope.theta, 0, 1e18));
            if (other != rope.theta) return theta->fail("rope_theta differs");
        }
    }
    return set_rope(config, rope, model);
}

// One entry per layer, true for a short convolution.
Result<std::vector<bool>> read_convolving(const JsonValue &types, size_t layers) {
    ASSIGN_OR_RETURN(const auto list, read_layer_types(types, layers));
    std::vector<bool> convolves(layers);
    for (size_t i = 0; i < layers; ++i) {
        ASSIGN_OR_RETURN(const std::string type, list[i].string());
        if (type != "conv" && type != "full_attention") {
            return list[i].unsupported("only conv and full_attention are supported");
        }
        convolves[i] = type == "conv";
    }
    return convolves;
}

// The same, from the list of layers that attend.
Result<std::vector<bool>> read_attending(const JsonValue &indices, size_t layers) {
    ASSIGN_OR_RETURN(const auto list, indices.elements());
    std::vector<bool> convolves(layers, true);
    for (const JsonValue &item : list) {
        ASSIGN_OR_RETURN(const int64_t layer, item.integer(0, 1 << 20));
        if (static_cast<size_t>(layer) < layers) convolves[static_cast<size_t>(layer)] = false;
    }
    return convolves;
}

// A third of the rows of the input matrix, and of its bias.
Weight third(const std::string &prefix, int64_t channels, int64_t hidden, int64_t which,
             bool bias) {
    Weight weight =
        fused_weight(prefix + "in_proj", 3 * channels, which * channels, channels, hidden);
    if (!bias) return weight;
    add_bias(&weight);
    weight.bias.stored_rows = weight.values.stored_rows;
    weight.bias.first_row = weight.values.first_row;
    return weight;
}

ShortConvolution short_convolution(const std::string &prefix, int32_t width, int64_t hidden,
                                   bool bias) {
    ShortConvolution made;
    made.width = width;
    made.b = third(prefix, hidden, hidden, 0, bias);
    made.c = third(prefix, hidden, hidden, 1, bias);
    made.x = third(prefix, hidden, hidden, 2, bias);
    made.filter = named_convolution(prefix + "conv", hidden, 0, hidden, width);
    made.o = named_weight(prefix + "out_proj", hidden, hidden);
    if (bias) {
        add_bias(&made.filter);
        add_bias(&made.o);
    }
    return made;
}

// Replaces attention in the layers where `convolves` is true.
Status set_convolutions(const JsonValue &config, const std::vector<bool> &convolves, Model *model) {
    ASSIGN_OR_RETURN(const int32_t width, read_convolution_width(config, "conv_L_cache", 3));
    ASSIGN_OR_RETURN(const bool bias, read_flag(config, "conv_bias", false));
    bool attends = false;
    for (size_t i = 0; i < convolves.size(); ++i) {
        attends = attends || !convolves[i];
        if (!convolves[i]) continue;
        Layer &layer = model->layers[i];
        layer.mixer = short_convolution(layer_prefix(i) + "conv.", width, model->hidden, bias);
    }
    if (attends) return {};
    const char *key = config.given("layer_types") ? "layer_types" : "full_attn_idxs";
    return config.at(key)->unsupported(
        "a model without a layer of full_attention is not supported");
}

// Renames a Llama's layers to this family's names and adds head norms.
void name_layers(Model *model) {
    model->final_norm.weight.name = "model.embedding_norm.weight";
    for (size_t i = 0; i < model->layers.size(); ++i) {
        Layer &layer = model->layers[i];
        const std::string prefix = layer_prefix(i), attention = prefix + "self_attn.";
        layer.before_attention.weight.name = prefix + "operator_norm.weight";
        layer.before_feed_forward.weight.name = prefix + "ffn_norm.weight";
        Attention &a = *layer.attention();
        FeedForward &f = *layer.feed_forward();
        const float epsilon = model->final_norm.epsilon;
        a.q_norm = named_norm(NormKind::rms, attention + "q_layernorm", a.head_dim, epsilon);
        a.k_norm = named_norm(NormKind::rms, attention + "k_layernorm", a.head_dim, epsilon);
        a.o.values.name = attention + "out_proj.weight";
        f.gate.values.name = prefix + "feed_forward.w1.weight";
        f.up.values.name = prefix + "feed_forward.w3.weight";
        f.down.values.name = prefix + "feed_forward.w2.weight";
    }
}

Status describe_decoder_of(const JsonValue &config, const DecoderShape &shape, Model *model) {
    RETURN_IF_ERROR(read_tied(config, model));
    ASSIGN_OR_RETURN(const double epsilon, read_number(config, "norm_eps", 1e-5, 0, 1));
    RETURN_IF_ERROR(check_other_keys(config, epsilon));
    describe_decoder(shape, model);
    name_layers(model);
    return read_rope_keys(config, model);
}

Status set_expert_layers(const JsonValue &config, Model *model) {
    ASSIGN_OR_RETURN(const ExpertCounts counts,
                     read_expert_counts(config, {"num_experts"}, 32, 4, *model));
    ExpertsShape experts{counts.all, 0, "w1", "w3", "w2"};
    ASSIGN_OR_RETURN(experts.width,
                     read_count(config, "moe_intermediate_size", 1792, most_intermediate));
    Router router;
    router.kind = RouterKind::sigmoid;
    router.chosen = counts.chosen;
    router.epsilon = 1e-6F;
    ASSIGN_OR_RETURN(router.normalised, read_flag(config, "norm_topk_prob", true));
    ASSIGN_OR_RETURN(const double scale,
                     read_number(config, "routed_scaling_factor", 1, 1e-9, 1e9));
    router.scale = static_cast<float>(scale);
    ASSIGN_OR_RETURN(const bool corrected, read_flag(config, "use_expert_bias", true));
    ASSIGN_OR_RETURN(const int32_t dense, read_count_or_zero(config, "num_dense_layers", 2, 4096));
    for (size_t i = static_cast<size_t>(dense); i < model->layers.size(); ++i) {
        const std::string prefix = layer_prefix(i) + "feed_forward.";
        Layer &layer = model->layers[i];
        set_experts(prefix, experts, router, model->hidden, &layer);
        if (corrected) set_correction(prefix + "expert_bias", &layer);
    }
    return {};
}

} // namespace

Status describe_lfm2(const JsonValue &config, Model *model) {
    ConfigDefaults defaults = common_defaults();
    defaults.hidden = 2560;
    defaults.intermediate = 12288;
    ASSIGN_OR_RETURN(DecoderShape shape, read_shape(config, defaults, model));
    ASSIGN_OR_RETURN(shape.intermediate, read_intermediate(config, defaults.intermediate));
    RETURN_IF_ERROR(describe_decoder_of(config, shape, model));
    const auto types = config.given("layer_types");
    const auto indices = config.given("full_attn_idxs");
    if (!types && !indices) return {}; // as in transformers: all attend
    ASSIGN_OR_RETURN(const std::vector<bool> convolves,
                     types ? read_convolving(*types, model->layers.size())
                           : read_attending(*indices, model->layers.size()));
    return set_convolutions(config, convolves, model);
}

Status describe_lfm2_moe(const JsonValue &config, Model *model) {
    ConfigDefaults defaults = common_defaults();
    defaults.hidden = 2048;
    defaults.intermediate = 7168;
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    RETURN_IF_ERROR(describe_decoder_of(config, shape, model));
    RETURN_IF_ERROR(set_expert_layers(config, model));
    ASSIGN_OR_RETURN(const JsonValue types, config.at("layer_types"));
    ASSIGN_OR_RETURN(const std::vector<bool> convolves,
                     read_convolving(types, model->layers.size()));
    return set_convolutions(config, convolves, model);
}

Status describe_lfm2_vl(const JsonValue &config, Model *model) {
    if (const auto text = config.given("text_config"); text && text->is_object()) {
        if (const auto type = text->given("model_type")) {
            ASSIGN_OR_RETURN(const std::string name, type->string());
            if (name != "lfm2") return type->unsupported("only lfm2 is supported");
        }
    }
    RETURN_IF_ERROR(describe_text_part(config, describe_lfm2, true, model));
    return read_tied(config, model);
}

} // namespace batchllm
