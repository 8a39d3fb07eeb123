// openPangu Embedded: the plain decoder; "bias" adds biases to q, k, v and o.
// Not among transformers' models: the keys and their defaults are those of its published configuration.
#include "model/config.h"
#include "model/families/families.h"

namespace batchllm {

Status describe_pangu(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 153376;
    defaults.intermediate = 12800;
    defaults.layers = 34;
    defaults.kv_heads = 8;
    defaults.max_positions = 32768;
    defaults.bos = 1;
    defaults.eos = {45892};
    defaults.epsilon = 1e-5;
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    RopeDefaults rope;
    rope.theta = 16000000;
    RETURN_IF_ERROR(set_rope(config, rope, model));
    RETURN_IF_ERROR(set_activation(config, "hidden_act", Activation::silu, model));
    RETURN_IF_ERROR(set_windows(
        config, 0, [](size_t) { return false; }, model));
    ASSIGN_OR_RETURN(const bool biased, read_flag(config, "bias", true));
    if (!biased) return {};
    add_qkv_biases(model);
    add_output_biases(model);
    return {};
}

} // namespace batchllm
