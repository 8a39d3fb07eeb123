// Arcee's AFM: Llama with a feed-forward without a gate and a squared ReLU.
#include "model/config.h"
#include "model/families/families.h"

namespace batchllm {

Status describe_arcee(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.hidden = 2560;
    defaults.intermediate = 18432;
    defaults.max_positions = 4096;
    defaults.epsilon = 1e-5;
    defaults.bos = 128000;
    defaults.eos = {128001};
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    for (Layer &layer : model->layers) layer.feed_forward()->gate = {};
    RETURN_IF_ERROR(set_rope(config, {}, model));
    RETURN_IF_ERROR(set_activation(config, "hidden_act", Activation::relu_squared, model));
    RETURN_IF_ERROR(set_attention_biases(config, false, model));
    return set_feed_forward_biases(config, model);
}

} // namespace batchllm
