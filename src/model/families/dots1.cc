// dots.llm1: Qwen3's attention, with the experts of DeepSeek V3: a sigmoid router with a correction
// and groups, shared experts, dense layers first.
#include "model/config.h"
#include "model/families/families.h"

namespace batchllm {

Status describe_dots1(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 152064;
    defaults.hidden = 4608;
    defaults.intermediate = 10944;
    defaults.layers = 62;
    defaults.max_positions = 2048;
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    RETURN_IF_ERROR(set_rope(config, {}, model));
    set_head_norms(model);
    RETURN_IF_ERROR(set_attention_biases(config, false, model));
    GroupedExperts experts; // the class has no defaults for the rest
    for (const char *key : {"n_routed_experts", "num_experts_per_tok", "n_shared_experts"}) {
        RETURN_IF_ERROR(config.at(key).status());
    }
    experts.width = 1408;
    RETURN_IF_ERROR(set_grouped_experts(config, experts, model));
    RETURN_IF_ERROR(set_activation(config, "hidden_act", Activation::silu, model));
    ASSIGN_OR_RETURN(const int32_t window, read_window(config, 4096));
    ASSIGN_OR_RETURN(const int32_t full,
                     read_count_or_zero(config, "max_window_layers", 62, 1 << 20));
    return set_windows(
        config, window, [&](size_t layer) { return static_cast<int32_t>(layer) >= full; }, model);
}

} // namespace batchllm
