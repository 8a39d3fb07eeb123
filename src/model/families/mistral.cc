// Mistral: the plain decoder, with a sliding window on all layers or on those that layer_types
// lists.
#include "model/config.h"
#include "model/families/families.h"

namespace batchllm {

Status describe_mistral(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.intermediate = 14336;
    defaults.kv_heads = 8;
    defaults.max_positions = 131072;
    defaults.bos = 1;
    defaults.eos = {2};
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    RETURN_IF_ERROR(set_rope(config, {}, model));
    RETURN_IF_ERROR(set_activation(config, "hidden_act", Activation::silu, model));
    ASSIGN_OR_RETURN(const int32_t window, read_window(config, 4096));
    return set_windows(
        config, window, [](size_t) { return true; }, model);
}

} // namespace batchllm
