// Gemma 2 and VaultGemma: RMS norms with weight + 1, before and after attention and feed-forward; every other
// layer has a window; softcaps on scores and logits. VaultGemma has no norms after them.
#include "model/config.h"
#include "model/families/families.h"
#include "model/families/gemma.h"

namespace batchllm {

Status describe_gemma2(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.max_positions = 8192;
    defaults.vocabulary = 256000;
    RETURN_IF_ERROR(describe_gemma(config, defaults, model));

    RETURN_IF_ERROR(set_rope(config, {}, model));
    ASSIGN_OR_RETURN(const int32_t window, read_window(config, 4096));
    RETURN_IF_ERROR(set_windows(
        config, window, [](size_t layer) { return layer % 2 == 0; }, model));
    ASSIGN_OR_RETURN(const float softcap, read_softcap(config, "attn_logit_softcapping", 50));
    for_each_attention(model, [&](size_t, Attention &attention) { attention.softcap = softcap; });
    ASSIGN_OR_RETURN(model->logits_softcap, read_softcap(config, "final_logit_softcapping", 30));
    return {};
}

Status describe_vaultgemma(const JsonValue &config, Model *model) {
    RETURN_IF_ERROR(describe_gemma2(config, model));
    for (Layer &layer : model->layers) layer.after_attention = layer.after_feed_forward = {};
    return {};
}

} // namespace batchllm
