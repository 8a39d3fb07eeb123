// Gemma 4: like Gemma 3, but with plain norms, normed values and unscaled scores. Layers without a
// window have heads of another size. Some sizes have a second embedding with a part for each layer,
// last layers that attend to the keys and values of earlier ones, values that equal the keys, and
// experts beside every feed-forward; the "unified" one (12B) has none of these but values that equal
// the keys. From a checkpoint with towers, only the text model is used.
#include <cmath>
#include <string>

#include "model/config.h"
#include "model/families/families.h"
#include "model/families/gemma.h"

namespace batchllm {
namespace {

// The class's default if a configuration has no rope keys.
constexpr std::string_view gemma4_rope = R"({"rope_parameters": {
    "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}})";

struct HeadShape {
    int32_t kv_heads, head_dim;
    bool operator==(const HeadShape &) const = default;
};

Status refuse_both_directions(const JsonValue &config) {
    if (const auto value = config.given("use_bidirectional_attention")) {
        ASSIGN_OR_RETURN(const std::string kind, value->string());
        // "vision": only affects the tokens of an image.
        if (kind != "vision")
            return value->unsupported(
                "attention of text in both directions is not supported, only \"vision\"");
    }
    return {};
}

// The last layer has no window, whatever the configuration says.
Status set_gemma4_windows(const JsonValue &config, int32_t otherwise, Model *model) {
    ASSIGN_OR_RETURN(const int32_t window, read_window(config, otherwise));
    RETURN_IF_ERROR(set_windows(
        config, window, [](size_t layer) { return (layer + 1) % 6 != 0; }, model));
    model->layers.back().attention()->window = 0;
    return {};
}

// One layer's entry in "per_layer_config"; empty if the layer has none.
Result<HeadShape> read_override(const JsonValue &overrides, size_t layer, const HeadShape &all) {
    const auto entry = overrides.given(std::to_string(layer));
    if (!entry) return all;
    if (!entry->is_object()) return entry->fail("must be an object");
    RETURN_IF_ERROR(entry->only_keys({"head_dim", "num_key_value_heads"}));
    HeadShape shape = all;
    ASSIGN_OR_RETURN(shape.head_dim, read_count(*entry, "head_dim", all.head_dim, 1024));
    ASSIGN_OR_RETURN(shape.kv_heads,
                     read_count(*entry, "num_key_value_heads", all.kv_heads, 1 << 14));
    return shape;
}

// The heads of layers without a window, either as published or layer by layer as transformers 5.17
// writes them.
Result<HeadShape> read_full_heads(const JsonValue &config, const Model &model, const HeadShape &all,
                                  bool values_are_keys) {
    HeadShape full = all;
    const auto overrides = config.given("per_layer_config");
    if (!overrides) {
        ASSIGN_OR_RETURN(full.head_dim, read_count(config, "global_head_dim", 512, 1024));
        ASSIGN_OR_RETURN(const int32_t kv_heads,
                         read_count(config, "num_global_key_value_heads", all.kv_heads, 1 << 14));
        if (values_are_keys) full.kv_heads = kv_heads;
        return full;
    }
    if (!overrides->is_object()) return overrides->fail("must be an object");
    ASSIGN_OR_RETURN(full, read_override(*overrides, model.layers.size() - 1, all));
    for (size_t i = 0; i < model.layers.size(); ++i) {
        ASSIGN_OR_RETURN(const HeadShape own, read_override(*overrides, i, all));
        if (!(own == (model.layers[i].attention()->window != 0 ? all : full))) {
            return overrides->unsupported(
                "layers of one layer_types entry have heads of one shape");
        }
    }
    return full;
}

// The tensors of attention, once the shape of the heads is known.
void describe_attention(size_t layer, bool values_are_keys, Model *model) {
    Attention &a = *model->layers[layer].attention();
    const std::string name = layer_prefix(layer) + "self_attn.";
    const int64_t hidden = model->hidden;
    a.scale = 1;
    a.q = named_weight(name + "q_proj", a.q_size(), hidden);
    a.k = named_weight(name + "k_proj", a.kv_size(), hidden);
    a.v = named_weight(name + (values_are_keys ? "k_proj" : "v_proj"), a.kv_size(), hidden);
    a.o = named_weight(name + "o_proj", hidden, a.q_size());
}

Status set_attention(const JsonValue &config, const DecoderShape &shape, Model *model) {
    const HeadShape all{shape.kv_heads, shape.head_dim};
    ASSIGN_OR_RETURN(const bool values_are_keys, read_flag(config, "attention_k_eq_v", false));
    ASSIGN_OR_RETURN(const HeadShape full, read_full_heads(config, *model, all, values_are_keys));
    if (full.head_dim % 2 != 0 || shape.heads % full.kv_heads != 0) {
        return error(BATCHLLM_ERROR_MODEL_FORMAT,
                     "%s: %d heads of %d of keys and values and %d of queries in layers of "
                     "full_attention: the size must be even, and the one number divide the other",
                     config.file().c_str(), full.kv_heads, full.head_dim, shape.heads);
    }
    for (size_t i = 0; i < model->layers.size(); ++i) {
        Attention &a = *model->layers[i].attention();
        if (a.window == 0) {
            a.kv_heads = full.kv_heads;
            a.head_dim = full.head_dim;
        }
        describe_attention(i, values_are_keys && a.window == 0, model);
    }
    set_head_norms(model);
    for_each_attention(model, [&](size_t, Attention &attention) {
        attention.v_norm.kind = NormKind::rms;
        attention.v_norm.epsilon = shape.epsilon;
    });
    return set_attention_biases(config, false, model);
}

Status set_gemma4_ropes(const JsonValue &config, Model *model) {
    ASSIGN_OR_RETURN(const RopeKeys keys, RopeKeys::of(config, gemma4_rope));
    ASSIGN_OR_RETURN(const JsonValue own, keys.value().at("rope_parameters"));
    for (const char *type : {"full_attention", "sliding_attention"}) {
        RETURN_IF_ERROR(own.at(type).status());
    }
    RopeDefaults rope;
    rope.proportional = true;
    ASSIGN_OR_RETURN(LayerRopes ropes, read_layer_ropes(keys.value(), *model, rope, rope, nullptr));
    set_layer_ropes(std::move(ropes), model);
    return {};
}

// The last "num_kv_shared_layers" layers attend to the keys and values of the last layer of the
// same kind before them. Published files also have tensors for their own keys and values, which are
// unused.
Status share_keys_and_values(const JsonValue &config, Model *model) {
    const auto value = config.given("num_kv_shared_layers");
    if (!value) return {};
    const size_t layers = model->layers.size();
    ASSIGN_OR_RETURN(const int64_t shared, value->integer(0, static_cast<int64_t>(layers)));
    ASSIGN_OR_RETURN(const bool wide, read_flag(config, "use_double_wide_mlp", false));
    const size_t first = layers - static_cast<size_t>(shared);
    for (size_t i = first; i < layers; ++i) {
        Attention &a = *model->layers[i].attention();
        for (size_t j = 0; j < first; ++j) {
            if (model->layers[j].attention()->window != a.window) continue;
            a.kv_layer = static_cast<int32_t>(j);
        }
        if (a.kv_layer < 0) {
            return value->fail("layer " + std::to_string(i) +
                               " has no layer of its kind to share keys and values with");
        }
        a.k = a.v = {};
        a.k_norm = a.v_norm = {};
        for (const char *name : {"k_proj.", "v_proj.", "k_norm."}) {
            model->passed_over.push_back(layer_prefix(i) + "self_attn." + name);
        }
        if (!wide) continue;
        FeedForward &f = *model->layers[i].feed_forward();
        f.width *= 2;
        f.gate.values.rows = f.up.values.rows = f.down.values.columns = f.width;
    }
    return {};
}

// Experts beside each layer's feed-forward: both take the residual stream, each behind a norm of its
// own, and each result is normed before they are added. The class has no defaults for their keys.
Status add_experts(const JsonValue &config, Model *model) {
    ASSIGN_OR_RETURN(const bool given, read_flag(config, "enable_moe_block", false));
    if (!given) return {};
    for (const char *key : {"num_experts", "top_k_experts", "moe_intermediate_size"}) {
        ASSIGN_OR_RETURN(const JsonValue value, config.at(key));
        if (value.is_null()) return value.fail("enable_moe_block needs a number");
    }
    ASSIGN_OR_RETURN(const ExpertCounts counts,
                     read_expert_counts(config, {"num_experts"}, 1, 1, *model, "top_k_experts"));
    ExpertsShape experts;
    experts.count = counts.all;
    ASSIGN_OR_RETURN(experts.width, read_count(config, "moe_intermediate_size", 1, 1 << 20));
    const int64_t hidden = model->hidden;
    Router router;
    router.chosen = counts.chosen;
    router.normalised = true;
    router.logits_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(hidden)));
    router.norm.kind = NormKind::rms;
    router.norm.epsilon = model->final_norm.epsilon;
    for (size_t i = 0; i < model->layers.size(); ++i) {
        Layer &layer = model->layers[i];
        const std::string prefix = layer_prefix(i);
        const auto norm = [&](const char *name) {
            return named_norm(NormKind::rms, prefix + name, hidden, router.norm.epsilon);
        };
        FeedForward dense = *layer.feed_forward();
        router.norm.weight = named_vector(prefix + "router.scale", hidden);
        router.expert_scale = named_vector(prefix + "router.per_expert_scale", counts.all);
        set_experts(prefix, experts, router, hidden, &layer);
        SharedExperts &both = add_shared_expert(std::move(dense), &layer);
        both.experts.router.weight = named_weight(prefix + "router.proj", counts.all, hidden);
        both.experts.before = norm("pre_feedforward_layernorm_2");
        both.experts.after = norm("post_feedforward_layernorm_2");
        both.after = norm("post_feedforward_layernorm_1");
    }
    return {};
}

Status set_layer_inputs(const JsonValue &config, const DecoderShape &shape, Model *model) {
    const auto width = config.given("hidden_size_per_layer_input");
    LayerInputs &inputs = model->layer_inputs;
    // Null and 0 both mean that there is none.
    if (!width && config.find("hidden_size_per_layer_input")) return {};
    int64_t size = 256;
    if (width) {
        ASSIGN_OR_RETURN(size, width->integer(0, 1 << 16));
    }
    if (size == 0) return {};
    inputs.width = static_cast<int32_t>(size);
    const int64_t all = shape.layers * size;
    ASSIGN_OR_RETURN(const int32_t rows,
                     read_count(config, "vocab_size_per_layer_input", 262144, 1 << 24));
    if (rows < model->vocabulary) {
        return error(BATCHLLM_ERROR_MODEL_FORMAT,
                     "%s: \"vocab_size_per_layer_input\" is %d: less than vocab_size, %d",
                     config.file().c_str(), rows, model->vocabulary);
    }
    inputs.embedding =
        fused_weight("model.embed_tokens_per_layer", rows, 0, model->vocabulary, all).values;
    inputs.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(size)));
    inputs.projection = named_weight("model.per_layer_model_projection", all, model->hidden);
    inputs.projection_scale = 1 / model->embedding_scale;
    inputs.norm = named_norm(NormKind::rms, "model.per_layer_projection_norm", size, shape.epsilon);
    inputs.scale = static_cast<float>(std::sqrt(0.5));
    for (size_t i = 0; i < model->layers.size(); ++i) {
        Layer &layer = model->layers[i];
        const std::string name = layer_prefix(i);
        layer.input.activation = layer.feed_forward()->activation;
        layer.input.gate = named_weight(name + "per_layer_input_gate", size, model->hidden);
        layer.input.down = named_weight(name + "per_layer_projection", model->hidden, size);
        layer.after_input = named_norm(NormKind::rms, name + "post_per_layer_input_norm",
                                       model->hidden, shape.epsilon);
    }
    return {};
}

// Everything except experts and layer inputs. The numbers are defaults.
Result<DecoderShape> describe_plain_gemma4(const JsonValue &config, int32_t max_positions,
                                           int32_t window, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 262144;
    defaults.hidden = 2304;
    defaults.intermediate = 9216;
    defaults.layers = 30;
    defaults.heads = 8;
    defaults.kv_heads = 4;
    defaults.head_dim = 256;
    defaults.max_positions = max_positions;
    defaults.bos = 2;
    defaults.eos = {1};
    defaults.tied = true;
    defaults.per_layer = true;
    RETURN_IF_ERROR(refuse_both_directions(config));
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    RETURN_IF_ERROR(set_gemma4_windows(config, window, model));
    RETURN_IF_ERROR(set_attention(config, shape, model));
    set_norms_around(0, model);
    model->embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(model->hidden)));
    RETURN_IF_ERROR(set_activation(config, "hidden_activation", Activation::gelu_tanh, model));
    RETURN_IF_ERROR(set_gemma4_ropes(config, model));
    RETURN_IF_ERROR(share_keys_and_values(config, model));
    for (size_t i = 0; i < model->layers.size(); ++i) {
        Tensor &scalar = model->layers[i].scalar;
        scalar.name = layer_prefix(i) + "layer_scalar";
        scalar.rows = scalar.columns = 1;
    }
    ASSIGN_OR_RETURN(model->logits_softcap, read_softcap(config, "final_logit_softcapping", 0));
    return shape;
}

} // namespace

Status describe_gemma4(const JsonValue &config, Model *model) {
    ASSIGN_OR_RETURN(const DecoderShape shape, describe_plain_gemma4(config, 131072, 512, model));
    RETURN_IF_ERROR(add_experts(config, model));
    return set_layer_inputs(config, shape, model);
}

Status describe_gemma4_unified(const JsonValue &config, Model *model) {
    return describe_plain_gemma4(config, 262144, 1024, model).status();
}

Status describe_gemma4_vision(const JsonValue &config, Model *model) {
    for (const char *part : {"audio_tower.", "embed_vision.", "embed_audio."}) {
        pass_over(part, model);
    }
    return describe_text_part(config, describe_gemma4, true, model);
}

// What makes embeddings of pictures and sounds is no tower, but is passed over like one.
Status describe_gemma4_unified_vision(const JsonValue &config, Model *model) {
    for (const char *part : {"vision_embedder.", "embed_vision.", "embed_audio."}) {
        pass_over(part, model);
    }
    return describe_text_part(config, describe_gemma4_unified, true, model);
}

} // namespace batchllm
