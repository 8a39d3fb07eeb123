// Granite 3: Llama with multipliers of the embedding, the scores, the sublayers' results and the
// logits.
#include "model/families/granite.h"

#include "model/families/families.h"

namespace batchllm {

Status describe_granite(const JsonValue &config, Model *model) {
    RETURN_IF_ERROR(describe_llama(config, model));
    return set_multipliers(config, model);
}

Status set_multipliers(const JsonValue &config, Model *model) {
    constexpr double least = 1e-9;
    constexpr double most = 1e9;
    ASSIGN_OR_RETURN(const double embedding,
                     read_number(config, "embedding_multiplier", 1, least, most));
    model->embedding_scale = static_cast<float>(embedding);
    ASSIGN_OR_RETURN(const double scores,
                     read_number(config, "attention_multiplier", 1, least, most));
    ASSIGN_OR_RETURN(const double residual,
                     read_number(config, "residual_multiplier", 1, least, most));
    for (Layer &layer : model->layers) {
        layer.attention()->scale = scores;
        layer.residual_scale = static_cast<float>(residual);
    }
    ASSIGN_OR_RETURN(const double logits, read_number(config, "logits_scaling", 1, least, most));
    model->logits_scale = static_cast<float>(1 / logits);
    return {};
}

} // namespace batchllm
