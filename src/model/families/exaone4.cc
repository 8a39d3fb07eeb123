// EXAONE 4: norms only after both sublayers, and per head of queries and keys. If some layers have
// a window, the others have no rope.
#include "model/config.h"
#include "model/families/families.h"

namespace batchllm {

Status describe_exaone4(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 102400;
    defaults.intermediate = 16384;
    defaults.kv_heads = 32;
    defaults.epsilon = 1e-5;
    defaults.bos = 0;
    defaults.eos = {2};
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    set_norms_after(model);
    set_head_norms(model);
    RETURN_IF_ERROR(set_activation(config, "hidden_act", Activation::silu, model));
    RETURN_IF_ERROR(set_rope(config, {}, model));

    ASSIGN_OR_RETURN(const int32_t window, read_window(config, 4096));
    if (window == 0) {
        return set_windows(
            config, 0, [](size_t) { return false; }, model);
    }
    RETURN_IF_ERROR(set_windows_but_every(config, window, "sliding_window_pattern", 4, model));
    for (Layer &layer : model->layers) {
        if (layer.attention()->window == 0) layer.attention()->rope = -1;
    }
    return {};
}

} // namespace batchllm
