// Gemma as published first, and CodeGemma: norms with weight + 1 before both sublayers.
#include "model/families/families.h"
#include "model/families/gemma.h"

namespace batchllm {

Status describe_gemma1(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 256000;
    defaults.hidden = 3072;
    defaults.intermediate = 24576;
    defaults.layers = 28;
    defaults.heads = 16;
    defaults.kv_heads = 16;
    defaults.max_positions = 8192;
    RETURN_IF_ERROR(describe_plain_gemma(config, defaults, model));
    set_norm_offsets(1, model);
    RETURN_IF_ERROR(set_rope(config, {}, model));
    // Published files say gelu, and mean its approximation, as in transformers.
    ASSIGN_OR_RETURN(Activation activation,
                     read_activation(config, "hidden_act", Activation::gelu_tanh));
    if (activation == Activation::gelu) activation = Activation::gelu_tanh;
    for (Layer &layer : model->layers) layer.feed_forward()->activation = activation;
    return {};
}

} // namespace batchllm
