// SmolLM3: the plain decoder, but every fourth layer has no rope.
#include "model/config.h"
#include "model/families/families.h"

namespace batchllm {

Status describe_smollm3(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 128256;
    defaults.hidden = 2048;
    defaults.layers = 36;
    defaults.heads = 16;
    defaults.kv_heads = 4;
    defaults.max_positions = 32768;
    defaults.bos = 128000;
    defaults.eos = {128001};
    defaults.tied = true;
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    RETURN_IF_ERROR(set_activation(config, "hidden_act", Activation::silu, model));

    RopeDefaults rope;
    rope.theta = 2e6;
    RETURN_IF_ERROR(set_rope(config, rope, model));
    ASSIGN_OR_RETURN(const auto roped, read_roped_layers(config, model->layers.size(), false));
    for (size_t i = 0; i < roped.size(); ++i) {
        if (!roped[i]) model->layers[i].attention()->rope = -1;
    }

    ASSIGN_OR_RETURN(const bool used, read_flag(config, "use_sliding_window", false));
    int32_t window = 0;
    if (used) {
        ASSIGN_OR_RETURN(window, read_window(config, 0));
    }
    RETURN_IF_ERROR(set_windows(
        config, window, [&](size_t layer) { return !roped[layer]; }, model));

    RETURN_IF_ERROR(set_attention_biases(config, false, model));
    return set_feed_forward_biases(config, model);
}

} // namespace batchllm
