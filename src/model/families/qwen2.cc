// Qwen2 and 2.5: biases on q, k and v; if a window is used at all, it is on the layers from
// max_window_layers on. MiMo: Qwen2 with layers that predict further tokens, which are passed over.
// Qwen3: a norm per head of q and k, optional biases.
#include "model/config.h"
#include "model/families/families.h"

namespace batchllm {
namespace {

Status describe_both(const JsonValue &config, int32_t head_dim, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 151936;
    defaults.intermediate = 22016;
    defaults.kv_heads = 32;
    defaults.head_dim = head_dim;
    defaults.max_positions = 32768;
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    RETURN_IF_ERROR(set_rope(config, {}, model));
    RETURN_IF_ERROR(set_activation(config, "hidden_act", Activation::silu, model));

    ASSIGN_OR_RETURN(const bool used, read_flag(config, "use_sliding_window", false));
    int32_t window = 0;
    int32_t full = 28;
    if (used) {
        ASSIGN_OR_RETURN(window, read_window(config, 4096));
        ASSIGN_OR_RETURN(full, read_count_or_zero(config, "max_window_layers", full, 1 << 20));
    }
    return set_windows(
        config, window, [&](size_t layer) { return static_cast<int32_t>(layer) >= full; }, model);
}

} // namespace

Status describe_qwen2(const JsonValue &config, Model *model) {
    RETURN_IF_ERROR(describe_both(config, 0, model));
    add_qkv_biases(model);
    return {};
}

Status describe_mimo(const JsonValue &config, Model *model) {
    RETURN_IF_ERROR(describe_qwen2(config, model));
    pass_over("model.mtp_layers.", model);
    return {};
}

Status describe_qwen3(const JsonValue &config, Model *model) {
    RETURN_IF_ERROR(describe_both(config, 128, model));
    set_head_norms(model);
    return set_attention_biases(config, false, model);
}

} // namespace batchllm
