// MiniMax-M2: experts in every layer behind a sigmoid router with a correction; norms of all queries
// and keys together; a rope on a part of each head.
#include "model/config.h"
#include "model/families/families.h"

namespace batchllm {

Status describe_minimax_m2(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 200064;
    defaults.hidden = 3072;
    defaults.intermediate = 1536;
    defaults.layers = 62;
    defaults.heads = 48;
    defaults.kv_heads = 8;
    defaults.head_dim = 128;
    defaults.max_positions = 196608;
    defaults.bos = 200034;
    defaults.eos = {200020};
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    RopeDefaults rope;
    rope.theta = 5000000;
    rope.partial = true;
    if (config.given("rotary_dim")) { // as published
        ASSIGN_OR_RETURN(const int32_t rotated,
                         read_count(config, "rotary_dim", 0, shape.head_dim));
        rope.part = static_cast<double>(rotated) / shape.head_dim;
    }
    RETURN_IF_ERROR(set_rope(config, rope, model));
    set_whole_norms(model);
    ASSIGN_OR_RETURN(
        const ExpertCounts counts,
        read_expert_counts(config, {"num_local_experts", "num_experts"}, 256, 8, *model));
    const ExpertsShape experts{counts.all, shape.intermediate, "w1", "w3", "w2"};
    Router router;
    router.kind = RouterKind::sigmoid;
    router.chosen = counts.chosen;
    router.normalised = true;
    for (size_t i = 0; i < model->layers.size(); ++i) {
        const std::string prefix = layer_prefix(i) + "block_sparse_moe.";
        set_experts(prefix, experts, router, model->hidden, &model->layers[i]);
        set_correction(prefix + "e_score_correction_bias", &model->layers[i]);
    }
    return set_activation(config, "hidden_act", Activation::silu, model);
}

} // namespace batchllm
