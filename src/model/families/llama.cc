// Llama 2 and 3.x: the plain decoder, with optional biases.
#include "model/families/llama.h"

#include "model/families/families.h"

namespace batchllm {

Status describe_llama_with(const JsonValue &config, const ConfigDefaults &defaults, Model *model) {
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    RETURN_IF_ERROR(set_rope(config, {}, model));
    RETURN_IF_ERROR(set_activation(config, "hidden_act", Activation::silu, model));
    RETURN_IF_ERROR(set_windows(
        config, 0, [](size_t) { return false; }, model));
    RETURN_IF_ERROR(set_attention_biases(config, false, model));
    return set_feed_forward_biases(config, model);
}

Status describe_llama(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.bos = 1;
    defaults.eos = {2};
    return describe_llama_with(config, defaults, model);
}

} // namespace batchllm
