// Nemotron 4 and Minitron: LayerNorms that add one to their weight, a feed-forward with a squared ReLU
// and no gate; a part of each head rotates.
#include "model/config.h"
#include "model/families/families.h"

namespace batchllm {

Status describe_nemotron(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 256000;
    defaults.hidden = 6144;
    defaults.intermediate = 24576;
    defaults.heads = 48;
    defaults.max_positions = 4096;
    defaults.bos = 2;
    defaults.eos = {3};
    defaults.epsilon_key = "norm_eps";
    defaults.epsilon = 1e-5;
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    set_layer_norms(model);
    set_norm_offsets(1, model);
    for (Layer &layer : model->layers) layer.feed_forward()->gate = {};
    RopeDefaults rope;
    rope.part = 0.5;
    rope.partial = true;
    RETURN_IF_ERROR(set_rope(config, rope, model));
    RETURN_IF_ERROR(set_activation(config, "hidden_act", Activation::relu_squared, model));
    RETURN_IF_ERROR(set_attention_biases(config, false, model));
    return set_feed_forward_biases(config, model);
}

} // namespace batchllm
