// Phi-1, 1.5 and 2: attention and feed-forward in parallel after one LayerNorm, biases everywhere, the
// head's too; a part of each head rotates.
#include "model/config.h"
#include "model/families/families.h"

namespace batchllm {

Status describe_phi(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 51200;
    defaults.hidden = 2048;
    defaults.intermediate = 8192;
    defaults.layers = 24;
    defaults.bos = 1;
    defaults.eos = {2};
    defaults.epsilon_key = "layer_norm_eps";
    defaults.epsilon = 1e-5;
    RETURN_IF_ERROR(
        refuse_flag(config, "qk_layernorm", "norms of queries and keys are not supported"));
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    model->final_norm.weight.name = "model.final_layernorm.weight";
    set_layer_norms(model);
    set_parallel(model);
    for (size_t i = 0; i < model->layers.size(); ++i) {
        Layer &layer = model->layers[i];
        const std::string prefix = layer_prefix(i);
        Attention &attention = *layer.attention();
        attention.o = named_weight(prefix + "self_attn.dense", model->hidden, attention.q_size());
        FeedForward &f = *layer.feed_forward();
        f.gate = {};
        f.up = named_weight(prefix + "mlp.fc1", shape.intermediate, model->hidden);
        f.down = named_weight(prefix + "mlp.fc2", model->hidden, shape.intermediate);
    }
    add_qkv_biases(model);
    add_output_biases(model);
    add_feed_forward_biases(model);
    add_bias(&model->head);
    RETURN_IF_ERROR(set_activation(config, "hidden_act", Activation::gelu_tanh, model));
    RopeDefaults rope;
    rope.part = 0.5;
    rope.partial = true;
    return set_rope(config, rope, model);
}

} // namespace batchllm
