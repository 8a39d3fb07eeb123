// Gemma 3: like Gemma 2, with norms per head of queries and keys and without softcaps. Five of six
// layers have a window, and a rope with its own base.
#include "model/config.h"
#include "model/families/families.h"
#include "model/families/gemma.h"
#include "model/families/siglip.h"

namespace batchllm {
namespace {

constexpr double full_theta = 1e6;

} // namespace

Status describe_gemma3(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 262208;
    defaults.max_positions = 131072;
    RETURN_IF_ERROR(describe_gemma(config, defaults, model));
    set_head_norms(model);
    set_norm_offsets(1, model);

    ASSIGN_OR_RETURN(const int32_t window, read_window(config, 4096));
    RETURN_IF_ERROR(set_windows_but_every(config, window, "sliding_window_pattern", 6, model));
    RopeDefaults full;
    full.theta = full_theta;
    ASSIGN_OR_RETURN(LayerRopes ropes,
                     read_layer_ropes(config, *model, full, {}, "rope_local_base_freq"));
    set_layer_ropes(std::move(ropes), model);
    ASSIGN_OR_RETURN(model->logits_softcap, read_softcap(config, "final_logit_softcapping", 0));
    return {};
}

Status describe_gemma3_vision(const JsonValue &config, Model *model) {
    RETURN_IF_ERROR(describe_text_part(config, describe_gemma3, true, model));
    set_tower(config, 262144, describe_gemma3_tower, model);
    return {};
}

} // namespace batchllm
