// Helium: Llama whose rope turns pairs of neighbours; the output of attention never has a bias.
#include "model/config.h"
#include "model/families/families.h"

namespace batchllm {

Status describe_helium(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 48000;
    defaults.hidden = 2560;
    defaults.intermediate = 7040;
    defaults.layers = 24;
    defaults.heads = 20;
    defaults.kv_heads = 20;
    defaults.head_dim = 128;
    defaults.max_positions = 4096;
    defaults.epsilon = 1e-8;
    defaults.bos = 1;
    defaults.eos = {2};
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    RopeDefaults rope;
    rope.theta = 100000;
    rope.pairs = true;
    RETURN_IF_ERROR(set_rope(config, rope, model));
    RETURN_IF_ERROR(set_activation(config, "hidden_act", Activation::silu, model));
    ASSIGN_OR_RETURN(const bool biases, read_flag(config, "attention_bias", false));
    if (biases) add_qkv_biases(model);
    return set_feed_forward_biases(config, model);
}

} // namespace batchllm
