// Falcon-H1: attention and Mamba-2 side by side in every layer, followed by a feed-forward, with
// multipliers of what goes into most matrices or comes out of them. A layer of it is two of ours: Mamba-2
// alone, and beside it attention with the feed-forward.
#include <array>
#include <utility>

#include "model/families/families.h"
#include "model/families/mamba.h"

namespace batchllm {
namespace {

constexpr double most_multiplier = 1e6;

Result<float> read_multiplier(const JsonValue &config, const char *key) {
    ASSIGN_OR_RETURN(const double factor,
                     read_number(config, key, 1, -most_multiplier, most_multiplier));
    return static_cast<float>(factor);
}

template <size_t N>
Result<std::array<float, N>> read_multipliers(const JsonValue &config, const char *key) {
    std::array<float, N> factors;
    factors.fill(1);
    const auto given = config.given(key);
    if (!given) return factors;
    ASSIGN_OR_RETURN(const auto list, given->elements());
    if (list.size() != N) return given->fail("must be " + std::to_string(N) + " numbers");
    for (size_t i = 0; i < N; ++i) {
        ASSIGN_OR_RETURN(const double factor, list[i].number(-most_multiplier, most_multiplier));
        factors[i] = static_cast<float>(factor);
    }
    return factors;
}

// Factors of the products; those of an input are not factors of the bias.
void multiply(Weight *weight, float input, float output) {
    weight->values.factor = input * output;
    weight->bias.factor = output;
}

Status multiply_attention(const JsonValue &config, Model *model) {
    ASSIGN_OR_RETURN(const float in, read_multiplier(config, "attention_in_multiplier"));
    ASSIGN_OR_RETURN(const float out, read_multiplier(config, "attention_out_multiplier"));
    ASSIGN_OR_RETURN(const float keys, read_multiplier(config, "key_multiplier"));
    for_each_attention(model, [&](size_t, Attention &attention) {
        multiply(&attention.q, in, 1);
        multiply(&attention.k, in, keys);
        multiply(&attention.v, in, 1);
        multiply(&attention.o, 1, out);
    });
    return {};
}

Status multiply_feed_forwards(const JsonValue &config, Model *model) {
    ASSIGN_OR_RETURN(const auto factors, read_multipliers<2>(config, "mlp_multipliers"));
    for (Layer &layer : model->layers) {
        multiply(&layer.feed_forward()->gate, 1, factors[0]);
        multiply(&layer.feed_forward()->down, 1, factors[1]);
    }
    return {};
}

Status multiply_mamba(const JsonValue &config, Mamba2 *mamba) {
    ASSIGN_OR_RETURN(const float in, read_multiplier(config, "ssm_in_multiplier"));
    ASSIGN_OR_RETURN(const float out, read_multiplier(config, "ssm_out_multiplier"));
    ASSIGN_OR_RETURN(const auto factors, read_multipliers<5>(config, "ssm_multipliers"));
    // There z, x, B, C, dt; in the model's input C, B, x, z, dt.
    constexpr size_t places[] = {3, 2, 1, 0, 4};
    for (size_t i = 0; i < mamba->input.size(); ++i) {
        mamba->input[i].factor = in * factors[places[i]];
    }
    multiply(&mamba->o, 1, out);
    return {};
}

Result<MambaShape> read_shape_of_mamba(const JsonValue &config, int32_t hidden) {
    std::optional<int32_t> values;
    if (config.given("mamba_d_ssm") || !config.find("mamba_d_ssm")) {
        ASSIGN_OR_RETURN(values, read_count(config, "mamba_d_ssm", 1024, 1 << 24));
    }
    return read_mamba(config, hidden, values);
}

Status put_mamba_beside(const JsonValue &config, Model *model) {
    ASSIGN_OR_RETURN(const MambaShape shape, read_shape_of_mamba(config, model->hidden));
    ASSIGN_OR_RETURN(const bool normed, read_flag(config, "mamba_rms_norm", false));
    ASSIGN_OR_RETURN(const bool first, read_flag(config, "mamba_norm_before_gate", true));
    ASSIGN_OR_RETURN(const bool bias, read_flag(config, "projectors_bias", false));
    std::vector<Layer> layers;
    for (size_t i = 0; i < model->layers.size(); ++i) {
        Layer &attention = model->layers[i];
        Layer &mamba = layers.emplace_back();
        mamba.before_attention = std::exchange(attention.before_attention, Norm());
        Mamba2 &made = mamba.mixer.emplace<Mamba2>(named_mamba(
            shape, layer_prefix(i) + "mamba.", model->hidden, model->final_norm.epsilon));
        if (!normed) made.norm = {};
        made.norm_first = normed && first;
        if (bias) add_bias(&made.o);
        RETURN_IF_ERROR(multiply_mamba(config, &made));
        attention.beside = true;
        layers.push_back(std::move(attention));
    }
    model->layers = std::move(layers);
    return {};
}

} // namespace

Status describe_falcon_h1(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 128000;
    defaults.intermediate = 14336;
    defaults.kv_heads = 8;
    defaults.max_positions = 8192;
    defaults.epsilon = 1e-5;
    defaults.bos = 1;
    defaults.eos = {2};
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    RETURN_IF_ERROR(set_rope(config, {}, model));
    set_bamba_names(shape, model);
    ASSIGN_OR_RETURN(const Activation activation,
                     read_activation(config, "hidden_act", Activation::silu));
    if (activation != Activation::silu) {
        return config.at("hidden_act")->unsupported("only silu is supported beside mamba");
    }
    RETURN_IF_ERROR(set_feed_forward_biases(config, model));
    RETURN_IF_ERROR(set_attention_biases(config, false, model));
    RETURN_IF_ERROR(multiply_attention(config, model));
    RETURN_IF_ERROR(multiply_feed_forwards(config, model));
    ASSIGN_OR_RETURN(model->embedding_scale, read_multiplier(config, "embedding_multiplier"));
    ASSIGN_OR_RETURN(model->logits_scale, read_multiplier(config, "lm_head_multiplier"));
    return put_mamba_beside(config, model);
}

} // namespace batchllm
