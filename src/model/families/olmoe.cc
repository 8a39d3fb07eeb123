// OLMoE: experts in every layer; one norm over all queries and one over all keys, as in OLMo 2, but
// with norms before the sublayers.
#include "model/config.h"
#include "model/families/families.h"

namespace batchllm {

Status describe_olmoe(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 50304;
    defaults.hidden = 2048;
    defaults.intermediate = 2048;
    defaults.layers = 16;
    defaults.heads = 16;
    defaults.max_positions = 4096;
    defaults.epsilon = 1e-5;
    defaults.eos = {50279};
    if (const auto clip = config.given("clip_qkv")) {
        return clip->unsupported("clipped queries, keys and values are not supported");
    }
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    RETURN_IF_ERROR(set_rope(config, {}, model));
    set_whole_norms(model);
    ASSIGN_OR_RETURN(
        const ExpertCounts counts,
        read_expert_counts(config, {"num_experts", "num_local_experts"}, 64, 8, *model));
    ExpertsShape experts;
    experts.count = counts.all;
    experts.width = shape.intermediate;
    Router router;
    router.chosen = counts.chosen;
    ASSIGN_OR_RETURN(router.normalised, read_flag(config, "norm_topk_prob", false));
    for (size_t i = 0; i < model->layers.size(); ++i) {
        set_experts(layer_prefix(i) + "mlp.", experts, router, model->hidden, &model->layers[i]);
    }
    RETURN_IF_ERROR(set_attention_biases(config, false, model));
    return set_activation(config, "hidden_act", Activation::silu, model);
}

} // namespace batchllm
