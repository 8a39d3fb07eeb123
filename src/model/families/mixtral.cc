// Mixtral: Mistral with experts in every layer.
#include "model/config.h"
#include "model/families/families.h"

namespace batchllm {

Status describe_mixtral(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.intermediate = 14336;
    defaults.kv_heads = 8;
    defaults.max_positions = 131072;
    defaults.epsilon = 1e-5;
    defaults.bos = 1;
    defaults.eos = {2};
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    RETURN_IF_ERROR(set_rope(config, {}, model));
    ASSIGN_OR_RETURN(
        const ExpertCounts counts,
        read_expert_counts(config, {"num_local_experts", "num_experts"}, 8, 2, *model));
    const ExpertsShape experts{counts.all, shape.intermediate, "w1", "w3", "w2"};
    Router router;
    router.chosen = counts.chosen;
    router.normalised = true;
    for (size_t i = 0; i < model->layers.size(); ++i) {
        set_experts(layer_prefix(i) + "block_sparse_moe.", experts, router, model->hidden,
                    &model->layers[i]);
    }
    RETURN_IF_ERROR(set_activation(config, "hidden_act", Activation::silu, model));
    return set_window(config, 0, model);
}

} // namespace batchllm
