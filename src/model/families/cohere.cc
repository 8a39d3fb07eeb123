// Cohere's models: attention and feed-forward in parallel after one LayerNorm without bias, a rope
// over pairs of neighbours, scaled logits. Command R and Aya: all layers see all positions. Command
// R7B and Command A: layers with a window have the rope, the others none.
#include "model/config.h"
#include "model/families/families.h"

namespace batchllm {
namespace {

// Everything except the windows, the rope's base by default.
Status describe_both(const JsonValue &config, double theta, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 256000;
    defaults.hidden = 8192;
    defaults.intermediate = 22528;
    defaults.layers = 40;
    defaults.heads = 64;
    defaults.max_positions = 8192;
    defaults.bos = 5;
    defaults.eos = {255001};
    defaults.tied = true;
    defaults.epsilon_key = "layer_norm_eps";
    defaults.epsilon = 1e-5;
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    model->final_norm.kind = NormKind::layer;
    set_parallel(model);
    for (Layer &layer : model->layers) layer.before_attention.kind = NormKind::layer;
    RETURN_IF_ERROR(set_activation(config, "hidden_act", Activation::silu, model));
    RETURN_IF_ERROR(set_attention_biases(config, false, model));
    RopeDefaults rope;
    rope.theta = theta;
    rope.pairs = true;
    RETURN_IF_ERROR(set_rope(config, rope, model));
    ASSIGN_OR_RETURN(const double scale, read_number(config, "logit_scale", 0.0625, 1e-9, 1e9));
    model->logits_scale = static_cast<float>(scale);
    return {};
}

} // namespace

Status describe_cohere(const JsonValue &config, Model *model) {
    ASSIGN_OR_RETURN(const bool norms, read_flag(config, "use_qk_norm", false));
    if (norms) { // Command R+
        return config.at("use_qk_norm")
            ->unsupported("norms with a weight for each head are not supported");
    }
    RETURN_IF_ERROR(describe_both(config, 500000, model));
    // Command R is published with 8,192 positions here and the 131,072 of its context there.
    ASSIGN_OR_RETURN(model->max_positions,
                     read_count(config, "model_max_length", model->max_positions, 1 << 30));
    return {};
}

Status describe_cohere2(const JsonValue &config, Model *model) {
    RETURN_IF_ERROR(describe_both(config, 10000, model));
    ASSIGN_OR_RETURN(const int32_t window, read_window(config, 4096));
    RETURN_IF_ERROR(set_windows_but_every(config, window, "sliding_window_pattern", 4, model));
    for (Layer &layer : model->layers) {
        if (layer.attention()->window == 0) layer.attention()->rope = -1;
    }
    return {};
}

} // namespace batchllm
