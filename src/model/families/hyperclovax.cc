// HyperCLOVA X SEED Think: Granite 3 with norms after both sublayers too. Unlike in Granite, scores
// have their usual scale without a multiplier, and logits are multiplied by theirs.
#include <cmath>

#include "model/config.h"
#include "model/families/families.h"

namespace batchllm {

Status describe_hyperclovax(const JsonValue &config, Model *model) {
    RETURN_IF_ERROR(describe_granite(config, model));
    if (!config.given("attention_multiplier")) {
        for_each_attention(model, [](size_t, Attention &attention) {
            attention.scale = 1 / std::sqrt(static_cast<double>(attention.head_dim));
        });
    }
    ASSIGN_OR_RETURN(const double logits, read_number(config, "logits_scaling", 1, 1e-9, 1e9));
    model->logits_scale = static_cast<float>(logits);
    ASSIGN_OR_RETURN(const bool norms, read_flag(config, "use_post_norm", true));
    for (size_t i = 0; norms && i < model->layers.size(); ++i) {
        const auto norm = [&](const char *name) {
            return named_norm(NormKind::rms, layer_prefix(i) + name, model->hidden,
                              model->final_norm.epsilon);
        };
        model->layers[i].after_attention = norm("post_norm1");
        model->layers[i].after_feed_forward = norm("post_norm2");
    }
    return {};
}

} // namespace batchllm
