// Sarvam 30B: GLM-4.5's experts under names of their own, a rope of whole heads; q, k and v in one
// tensor.
#include "model/config.h"
#include "model/families/families.h"

namespace batchllm {
namespace {

Status set_sarvam_experts(const JsonValue &config, Model *model) {
    ASSIGN_OR_RETURN(const ExpertCounts counts,
                     read_expert_counts(config,
                                        {"num_experts", "n_routed_experts", "num_local_experts"},
                                        128, 6, *model));
    GroupedExperts experts;
    experts.width = 1024;
    experts.dense = 1;
    experts.router.normalised = true;
    experts.router.scale = 2.5F;
    ASSIGN_OR_RETURN(experts.shared, read_count(config, "num_shared_experts", 1, 64));
    ASSIGN_OR_RETURN(const Router router, read_grouped_router(config, counts, experts.router));
    RETURN_IF_ERROR(set_experts_and_shared(config, experts, counts, router, model));
    for (size_t i = 0; i < model->layers.size(); ++i) {
        Layer &layer = model->layers[i];
        if (layer.experts() == nullptr) continue;
        set_correction(layer_prefix(i) + "mlp.gate.expert_bias", &layer);
    }
    return {};
}

void name_sarvam_tensors(Model *model) {
    model->embedding.name = "model.word_embeddings.weight";
    for_each_attention(model, [&](size_t i, Attention &a) {
        const std::string prefix = layer_prefix(i) + "attention.";
        fuse_qkv(prefix + "query_key_value", model->hidden, &a);
        a.o = named_weight(prefix + "dense", model->hidden, a.q_size());
        if (!a.q_norm) return;
        a.q_norm.weight.name = prefix + "query_layernorm.weight";
        a.k_norm.weight.name = prefix + "key_layernorm.weight";
    });
}

} // namespace

Status describe_sarvam_moe(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 262144;
    defaults.intermediate = 8192;
    defaults.layers = 19;
    defaults.heads = 64;
    defaults.kv_heads = 4;
    defaults.head_dim = 64;
    defaults.max_positions = 131072;
    defaults.eos = {1};
    const char *biases_key = known_key(config, "use_qkv_bias", "attention_bias");
    ASSIGN_OR_RETURN(const bool biases, read_flag(config, biases_key, false));
    if (biases) return config.at(biases_key)->unsupported("biases are not supported");
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    RopeDefaults rope;
    rope.theta = 8000000;
    rope.partial = true;
    RETURN_IF_ERROR(set_rope(config, rope, model));
    RETURN_IF_ERROR(set_sarvam_experts(config, model));
    RETURN_IF_ERROR(set_activation(config, "hidden_act", Activation::silu, model));
    ASSIGN_OR_RETURN(const bool norms, read_flag(config, "use_qk_norm", true));
    if (norms) set_head_norms(model);
    name_sarvam_tensors(model);
    // Layers after the last one predict further tokens; they are not part of the model itself.
    model->passed_over.push_back(layer_prefix(model->layers.size()));
    return {};
}

} // namespace batchllm
