#include "model/families/qwen_hybrid.h"

namespace batchllm {
namespace {

constexpr int32_t most_heads = 1024;
constexpr int32_t most_linear_head_dim = 1024;
// Limit for the key heads over all layers. Each has a few parts in the description, and a short
// file can ask for many.
constexpr size_t most_heads_in_all = 1 << 15;

// One entry per layer, true for a delta net.
Result<std::vector<bool>> read_delta_layers(const JsonValue &config, size_t layers) {
    std::vector<bool> delta(layers);
    const auto types = config.given("layer_types");
    if (!types) {
        ASSIGN_OR_RETURN(const int32_t interval,
                         read_count(config, "full_attention_interval", 4, 4096));
        for (size_t i = 0; i < layers; ++i) {
            delta[i] = (i + 1) % static_cast<size_t>(interval) != 0;
        }
        return delta;
    }
    ASSIGN_OR_RETURN(const auto list, read_layer_types(*types, layers));
    for (size_t i = 0; i < layers; ++i) {
        ASSIGN_OR_RETURN(const std::string type, list[i].string());
        if (type != "linear_attention" && type != "full_attention") {
            return list[i].unsupported("only linear_attention and full_attention are supported");
        }
        delta[i] = type == "linear_attention";
    }
    return delta;
}

Result<DeltaNet> read_delta_net(const JsonValue &config, size_t layers) {
    DeltaNet delta;
    ASSIGN_OR_RETURN(delta.key_heads, read_count(config, "linear_num_key_heads", 16, most_heads));
    ASSIGN_OR_RETURN(delta.value_heads,
                     read_count(config, "linear_num_value_heads", 32, most_heads));
    ASSIGN_OR_RETURN(delta.key_dim,
                     read_count(config, "linear_key_head_dim", 128, most_linear_head_dim));
    ASSIGN_OR_RETURN(delta.value_dim,
                     read_count(config, "linear_value_head_dim", 128, most_linear_head_dim));
    ASSIGN_OR_RETURN(delta.width, read_convolution_width(config, "linear_conv_kernel_dim", 4));
    if (delta.value_heads % delta.key_heads != 0) {
        return error(BATCHLLM_ERROR_MODEL_FORMAT,
                     "%s: \"linear_num_value_heads\" is %d: must be a multiple of "
                     "linear_num_key_heads, %d",
                     config.file().c_str(), delta.value_heads, delta.key_heads);
    }
    if (layers * static_cast<size_t>(delta.key_heads) > most_heads_in_all) {
        return error(BATCHLLM_ERROR_MODEL_FORMAT,
                     "%s: \"linear_num_key_heads\" is %d: %zu layers of so many are more than %zu "
                     "in all",
                     config.file().c_str(), delta.key_heads, layers, most_heads_in_all);
    }
    return delta;
}

void name_tensors(const std::string &prefix, int64_t hidden, float epsilon, DeltaNet *delta) {
    delta->convolution = {named_convolution(prefix + "conv1d", delta->channels(), 0,
                                            delta->channels(), delta->width)};
    delta->decay = named_vector(prefix + "A_log", delta->value_heads);
    delta->step_bias = named_vector(prefix + "dt_bias", delta->value_heads);
    delta->norm = named_norm(NormKind::rms, prefix + "norm", delta->value_dim, epsilon);
    delta->o = named_weight(prefix + "out_proj", hidden, delta->values_size());
}

} // namespace

Status describe_gated_attention(const JsonValue &config, const ConfigDefaults &defaults,
                                Model *model) {
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    for_each_attention(model, [](size_t, Attention &attention) {
        attention.gated = true;
        attention.q.values.rows *= 2;
    });
    set_head_norms(model);
    set_norm_offsets(1, model);
    RETURN_IF_ERROR(set_attention_biases(config, false, model));
    // Interleaved sections of several axes are accepted: text has the same position on all axes.
    RopeDefaults rope;
    rope.part = 0.25;
    rope.partial = true;
    rope.default_aliases = {"mrope"};
    return set_rope(config, rope, model);
}

Status set_delta_nets(const JsonValue &config, SetDeltaInput set_input, Model *model) {
    const size_t layers = model->layers.size();
    ASSIGN_OR_RETURN(const std::vector<bool> types, read_delta_layers(config, layers));
    ASSIGN_OR_RETURN(const DeltaNet shape, read_delta_net(config, layers));
    bool attends = false;
    for (size_t i = 0; i < layers; ++i) {
        if (!types[i]) {
            attends = true;
            continue;
        }
        Layer &layer = model->layers[i];
        const FeedForward *feed_forward = layer.feed_forward();
        if (feed_forward != nullptr && feed_forward->activation != Activation::silu) {
            return error(BATCHLLM_ERROR_UNSUPPORTED,
                         "%s: \"hidden_act\": only silu is supported beside linear_attention",
                         config.file().c_str());
        }
        const std::string prefix = layer_prefix(i) + "linear_attn.";
        DeltaNet &delta = layer.mixer.emplace<DeltaNet>(shape);
        name_tensors(prefix, model->hidden, model->final_norm.epsilon, &delta);
        set_input(prefix, model->hidden, &delta);
    }
    if (attends) return {};
    return error(BATCHLLM_ERROR_UNSUPPORTED,
                 "%s: \"%s\": a model without a layer of full_attention is not supported",
                 config.file().c_str(),
                 config.given("layer_types") ? "layer_types" : "full_attention_interval");
}

} // namespace batchllm
