// StarCoder2: LayerNorm, biases everywhere, a feed-forward without a gate, a window on all layers.
#include "model/config.h"
#include "model/families/families.h"

namespace batchllm {

Status describe_starcoder2(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 49152;
    defaults.hidden = 3072;
    defaults.intermediate = 12288;
    defaults.layers = 30;
    defaults.heads = 24;
    defaults.kv_heads = 2;
    defaults.max_positions = 4096;
    defaults.bos = 50256;
    defaults.eos = {50256};
    defaults.tied = true;
    defaults.epsilon_key = "norm_epsilon";
    defaults.epsilon = 1e-5;
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    set_layer_norms(model);
    for (size_t i = 0; i < model->layers.size(); ++i) {
        const std::string prefix = layer_prefix(i);
        FeedForward &f = *model->layers[i].feed_forward();
        f.gate = {};
        f.up = named_weight(prefix + "mlp.c_fc", shape.intermediate, model->hidden);
        f.down = named_weight(prefix + "mlp.c_proj", model->hidden, shape.intermediate);
    }
    ASSIGN_OR_RETURN(const bool biases, read_flag(config, "use_bias", true));
    if (biases) {
        add_qkv_biases(model);
        add_output_biases(model);
        add_feed_forward_biases(model);
    }
    RETURN_IF_ERROR(set_activation(config, "hidden_act", Activation::gelu_tanh, model));
    RETURN_IF_ERROR(set_rope(config, {}, model));
    return set_window(config, 0, model);
}

} // namespace batchllm
