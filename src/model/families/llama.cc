// Llama 2 and 3.x: the plain decoder, with optional biases.
#include "model/config.h"
#include "model/families/families.h"

namespace batchllm {

Status describe_llama(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.bos = 1;
    defaults.eos = 2;
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    RETURN_IF_ERROR(describe_decoder(config, shape, model));
    ASSIGN_OR_RETURN(const Activation activation,
                     read_activation(config, "hidden_act", Activation::silu));
    RETURN_IF_ERROR(set_windows(config, 0, 0, model));
    ASSIGN_OR_RETURN(const bool attention_bias, read_flag(config, "attention_bias", false));
    ASSIGN_OR_RETURN(const bool mlp_bias, read_flag(config, "mlp_bias", false));
    for (Layer &layer : model->layers) {
        Attention &attention = layer.attention;
        FeedForward &feed_forward = layer.feed_forward;
        feed_forward.activation = activation;
        if (attention_bias) {
            for (Weight *w : {&attention.q, &attention.k, &attention.v, &attention.o}) add_bias(w);
        }
        if (mlp_bias) {
            for (Weight *w : {&feed_forward.gate, &feed_forward.up, &feed_forward.down}) {
                add_bias(w);
            }
        }
    }
    return {};
}

} // namespace batchllm
