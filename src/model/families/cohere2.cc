// Command R7B and Command A: attention and feed-forward in parallel after one LayerNorm without
// bias; layers with a window have a rope over pairs of neighbours, the others none; scaled logits.
#include "model/config.h"
#include "model/families/families.h"

namespace batchllm {

Status describe_cohere2(const JsonValue &config, Model *model) {
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
    for (Layer &layer : model->layers) {
        layer.before_attention.kind = NormKind::layer;
        layer.before_feed_forward = {};
        layer.parallel = true;
    }
    RETURN_IF_ERROR(set_activation(config, "hidden_act", Activation::silu, model));
    RETURN_IF_ERROR(set_attention_biases(config, false, model));

    ASSIGN_OR_RETURN(const int32_t window, read_window(config, 4096));
    RETURN_IF_ERROR(set_windows_but_every(config, window, "sliding_window_pattern", 4, model));
    RopeDefaults rope;
    rope.pairs = true;
    RETURN_IF_ERROR(set_rope(config, rope, model));
    for (Layer &layer : model->layers) {
        if (layer.attention()->window == 0) layer.attention()->rope = -1;
    }
    ASSIGN_OR_RETURN(const double scale, read_number(config, "logit_scale", 0.0625, 1e-9, 1e9));
    model->logits_scale = static_cast<float>(scale);
    return {};
}

} // namespace batchllm
