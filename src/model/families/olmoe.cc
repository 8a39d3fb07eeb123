// OLMoE: experts in every layer; one norm over all queries and one over all keys, as in OLMo 2, but
// with norms before the sublayers. FlexOlmo: the same with norms after them instead.
#include "model/config.h"
#include "model/families/families.h"

namespace batchllm {
namespace {

struct OlmoExperts {
    ExpertCounts counts;
    double theta;
};

// The numbers are defaults.
Status describe_sparse_olmo(const JsonValue &config, const ConfigDefaults &defaults,
                            const OlmoExperts &kind, Model *model) {
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    RopeDefaults rope;
    rope.theta = kind.theta;
    RETURN_IF_ERROR(set_rope(config, rope, model));
    set_whole_norms(model);
    ASSIGN_OR_RETURN(const ExpertCounts counts,
                     read_expert_counts(config, {"num_experts", "num_local_experts"},
                                        kind.counts.all, kind.counts.chosen, *model));
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

} // namespace

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
    RETURN_IF_ERROR(
        refuse_key(config, "clip_qkv", "clipped queries, keys and values are not supported"));
    return describe_sparse_olmo(config, defaults, {{64, 8}, 10000}, model);
}

Status describe_flex_olmo(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 100352;
    defaults.max_positions = 4096;
    defaults.eos = {100257};
    RETURN_IF_ERROR(describe_sparse_olmo(config, defaults, {{7, 5}, 500000}, model));
    set_norms_after(model);
    return {};
}

} // namespace batchllm
