// Jais 2: LayerNorms, biases everywhere, a feed-forward with a squared ReLU and no gate.
#include "model/config.h"
#include "model/families/families.h"

namespace batchllm {

Status describe_jais2(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 150272;
    defaults.hidden = 3328;
    defaults.intermediate = 26624;
    defaults.heads = 26;
    defaults.max_positions = 8192;
    defaults.bos = 0;
    defaults.eos = {150024};
    defaults.epsilon_key = "layer_norm_eps";
    defaults.epsilon = 1e-5;
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    set_layer_norms(model);
    for (Layer &layer : model->layers) layer.feed_forward()->gate = {};
    RETURN_IF_ERROR(set_rope(config, {}, model));
    RETURN_IF_ERROR(set_activation(config, "hidden_act", Activation::relu_squared, model));
    RETURN_IF_ERROR(set_attention_biases(config, true, model));
    ASSIGN_OR_RETURN(const bool biases, read_flag(config, "mlp_bias", true));
    if (biases) add_feed_forward_biases(model);
    return {};
}

} // namespace batchllm
