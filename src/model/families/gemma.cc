#include "model/families/gemma.h"

#include <cmath>

namespace batchllm {
namespace {

Status refuse_bidirectional(const JsonValue &config) {
    const auto value = config.given("use_bidirectional_attention");
    if (!value) return {};
    ASSIGN_OR_RETURN(const bool both_ways, value->boolean());
    return both_ways ? value->unsupported("only causal attention is supported") : Status();
}

} // namespace

void set_norms_around(float offset, Model *model) {
    for (size_t i = 0; i < model->layers.size(); ++i) {
        Layer &layer = model->layers[i];
        const auto norm = [&](const char *name) {
            return named_norm(NormKind::rms, layer_prefix(i) + name, model->hidden,
                              model->final_norm.epsilon);
        };
        layer.after_attention = norm("post_attention_layernorm");
        layer.before_feed_forward = norm("pre_feedforward_layernorm");
        layer.after_feed_forward = norm("post_feedforward_layernorm");
    }
    set_norm_offsets(offset, model);
}

Status describe_plain_gemma(const JsonValue &config, ConfigDefaults defaults, Model *model) {
    defaults.head_dim = 256;
    defaults.bos = 2;
    defaults.eos = {1};
    defaults.tied = true;
    RETURN_IF_ERROR(refuse_bidirectional(config));
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    model->embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(model->hidden)));
    return set_attention_biases(config, false, model);
}

Status describe_gemma(const JsonValue &config, ConfigDefaults defaults, Model *model) {
    defaults.hidden = 2304;
    defaults.intermediate = 9216;
    defaults.layers = 26;
    defaults.heads = 8;
    defaults.kv_heads = 4;
    RETURN_IF_ERROR(describe_plain_gemma(config, defaults, model));
    set_norms_around(1, model);
    RETURN_IF_ERROR(set_activation(config, "hidden_activation", Activation::gelu_tanh, model));
    ASSIGN_OR_RETURN(const double scalar,
                     read_number(config, "query_pre_attn_scalar", 256, 1e-6, 1e6));
    for_each_attention(
        model, [&](size_t, Attention &attention) { attention.scale = 1 / std::sqrt(scalar); });
    return {};
}

Result<float> read_softcap(const JsonValue &config, std::string_view key, double otherwise) {
    if (config.find(key) && !config.given(key)) return 0.0F;
    ASSIGN_OR_RETURN(const double cap, read_number(config, key, otherwise, 0, 1e6));
    if (cap == 0 && config.given(key)) return config.given(key)->fail("must be more than 0");
    return static_cast<float>(cap);
}

} // namespace batchllm
