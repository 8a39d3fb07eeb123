// IQuest-Coder: Llama with other defaults.
#include "model/config.h"
#include "model/families/families.h"

namespace batchllm {

Status describe_iquestcoder(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 76800;
    defaults.hidden = 5120;
    defaults.intermediate = 27648;
    defaults.layers = 80;
    defaults.heads = 40;
    defaults.kv_heads = 8;
    defaults.head_dim = 128;
    defaults.max_positions = 131072;
    defaults.epsilon = 1e-5;
    defaults.bos = 1;
    defaults.eos = {2};
    if (const auto clip = config.given("clip_qkv")) {
        return clip->unsupported("clipped queries, keys and values are not supported");
    }
    ASSIGN_OR_RETURN(const bool windows, read_flag(config, "use_sliding_window", false));
    if (windows) return config.at("use_sliding_window")->unsupported("windows are not supported");
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    RETURN_IF_ERROR(set_rope(config, {}, model));
    RETURN_IF_ERROR(set_activation(config, "hidden_act", Activation::silu, model));
    RETURN_IF_ERROR(set_windows(
        config, 0, [](size_t) { return false; }, model));
    RETURN_IF_ERROR(set_attention_biases(config, false, model));
    return set_feed_forward_biases(config, model);
}

} // namespace batchllm
