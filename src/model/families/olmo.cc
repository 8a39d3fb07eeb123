// OLMo: LayerNorms without a weight. OLMo 2: norms only after attention and feed-forward, plus one over all queries and one over all
// keys. OLMo 3: the same with a window on three of four layers; only the other layers' rope is
// scaled.
#include "model/config.h"
#include "model/families/families.h"

namespace batchllm {
namespace {

constexpr double olmo3_theta = 500000;

// Everything except the rope and the windows.
Status describe_both(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 50304;
    defaults.epsilon = 1e-5;
    defaults.eos = {50279};
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    set_norms_after(model);
    set_whole_norms(model);
    RETURN_IF_ERROR(set_activation(config, "hidden_act", Activation::silu, model));
    return set_attention_biases(config, false, model);
}

} // namespace

Status describe_olmo(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 50304;
    defaults.eos = {50279};
    RETURN_IF_ERROR(
        refuse_key(config, "clip_qkv", "clipped queries, keys and values are not supported"));
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    Norm plain;
    plain.kind = NormKind::layer;
    plain.epsilon = 1e-5F; // has no key
    model->final_norm = plain;
    for (Layer &layer : model->layers) layer.before_attention = layer.before_feed_forward = plain;
    RETURN_IF_ERROR(set_rope(config, {}, model));
    RETURN_IF_ERROR(set_activation(config, "hidden_act", Activation::silu, model));
    return set_attention_biases(config, false, model);
}

Status describe_olmo2(const JsonValue &config, Model *model) {
    RETURN_IF_ERROR(describe_both(config, model));
    return set_rope(config, {}, model);
}

Status describe_olmo3(const JsonValue &config, Model *model) {
    RETURN_IF_ERROR(describe_both(config, model));
    ASSIGN_OR_RETURN(const int32_t window, read_window(config, 4096));
    RETURN_IF_ERROR(set_windows(
        config, window, [](size_t layer) { return (layer + 1) % 4 != 0; }, model));
    RopeDefaults rope;
    rope.theta = olmo3_theta;
    ASSIGN_OR_RETURN(LayerRopes ropes, read_layer_ropes(config, *model, rope, rope, nullptr));
    set_layer_ropes(std::move(ropes), model);
    return {};
}

} // namespace batchllm
