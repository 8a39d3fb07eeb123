// InternLM3: Llama with keys of its own for biases.
#include "model/config.h"
#include "model/families/families.h"

namespace batchllm {
Status describe_internlm3(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 128512;
    defaults.intermediate = 10240;
    defaults.layers = 48;
    defaults.kv_heads = 2;
    defaults.head_dim = 128;
    defaults.max_positions = 32768;
    defaults.epsilon = 1e-5;
    defaults.bos = 1;
    defaults.eos = {2};
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    RopeDefaults rope;
    // Its base grows only beyond max_position_embeddings, which rows never are.
    rope.default_aliases = {"dynamic"};
    RETURN_IF_ERROR(set_rope(config, rope, model));
    RETURN_IF_ERROR(set_activation(config, "hidden_act", Activation::silu, model));
    RETURN_IF_ERROR(set_windows(
        config, 0, [](size_t) { return false; }, model));
    ASSIGN_OR_RETURN(const bool qkv,
                     read_flag(config, known_key(config, "qkv_bias", "attention_bias"), false));
    ASSIGN_OR_RETURN(const bool others,
                     read_flag(config, known_key(config, "bias", "mlp_bias"), false));
    if (qkv) add_qkv_biases(model);
    if (!others) return {};
    add_output_biases(model);
    add_feed_forward_biases(model);
    return {};
}

} // namespace batchllm
