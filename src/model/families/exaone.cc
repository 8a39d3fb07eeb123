// EXAONE 3: Llama with names of its own. EXAONE 4: norms only after both sublayers, and per head of queries and keys. K-EXAONE: the latter
// alone, with norms before the sublayers; a sigmoid router with a correction, shared experts. In
// these two, if some layers have a window, the others have no rope.
#include "model/config.h"
#include "model/families/families.h"

namespace batchllm {
namespace {

// Everything except what the layers feed and the norms around the sublayers.
Status describe_both(const JsonValue &config, ConfigDefaults defaults, Model *model) {
    defaults.vocabulary = 102400;
    defaults.intermediate = 16384;
    defaults.kv_heads = 32;
    defaults.epsilon = 1e-5;
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    set_head_norms(model);
    RETURN_IF_ERROR(set_rope(config, {}, model));

    ASSIGN_OR_RETURN(const int32_t window, read_window(config, 4096));
    if (window == 0) {
        return set_windows(
            config, 0, [](size_t) { return false; }, model);
    }
    RETURN_IF_ERROR(set_windows_but_every(config, window, "sliding_window_pattern", 4, model));
    for (Layer &layer : model->layers) {
        if (layer.attention()->window == 0) layer.attention()->rope = -1;
    }
    return {};
}

Status set_exaone_experts(const JsonValue &config, Model *model) {
    ASSIGN_OR_RETURN(
        const ExpertCounts counts,
        read_expert_counts(config, {"num_experts", "num_local_experts"}, 64, 8, *model));
    ExpertsShape experts;
    experts.count = counts.all;
    ASSIGN_OR_RETURN(experts.width, read_count(config, "moe_intermediate_size", 1024, 1 << 20));
    ASSIGN_OR_RETURN(const int32_t shared, read_count(config, "num_shared_experts", 1, 64));
    Router defaults;
    defaults.normalised = true;
    defaults.scale = 2.5F;
    ASSIGN_OR_RETURN(const Router router, read_grouped_router(config, counts, defaults));
    ASSIGN_OR_RETURN(const auto sparse, read_layers_with_experts(config, model->layers.size()));
    for (size_t i = 0; i < sparse.size(); ++i) {
        if (!sparse[i]) continue;
        set_experts_beside_shared(layer_prefix(i) + "mlp.", experts, router,
                                  "e_score_correction_bias", shared, model->hidden,
                                  &model->layers[i]);
    }
    return {};
}

void name_exaone3_tensors(const DecoderShape &shape, Model *model) {
    const int64_t hidden = model->hidden;
    model->embedding = named_weight("transformer.wte", model->vocabulary, hidden).values;
    model->final_norm = named_norm(NormKind::rms, "transformer.ln_f", hidden, shape.epsilon);
    for (size_t i = 0; i < model->layers.size(); ++i) {
        Layer &layer = model->layers[i];
        const std::string prefix = "transformer.h." + std::to_string(i) + ".";
        layer.before_attention = named_norm(NormKind::rms, prefix + "ln_1", hidden, shape.epsilon);
        layer.before_feed_forward =
            named_norm(NormKind::rms, prefix + "ln_2", hidden, shape.epsilon);
        Attention &a = *layer.attention();
        const std::string name = prefix + "attn.attention.";
        a.q = named_weight(name + "q_proj", a.q_size(), hidden);
        a.k = named_weight(name + "k_proj", a.kv_size(), hidden);
        a.v = named_weight(name + "v_proj", a.kv_size(), hidden);
        a.o = named_weight(name + "out_proj", hidden, a.q_size());
        FeedForward &f = *layer.feed_forward();
        f.gate = named_weight(prefix + "mlp.c_fc_0", f.width, hidden);
        f.up = named_weight(prefix + "mlp.c_fc_1", f.width, hidden);
        f.down = named_weight(prefix + "mlp.c_proj", hidden, f.width);
    }
}

} // namespace

// Its keys are those of its published files, or those that Llama has.
Status describe_exaone(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 102400;
    defaults.intermediate = 14336;
    ASSIGN_OR_RETURN(defaults.layers, read_count(config, "num_layers", 32, 4096));
    defaults.kv_heads = 8;
    defaults.max_positions = 4096;
    defaults.bos = 1;
    defaults.eos = {361};
    ASSIGN_OR_RETURN(defaults.epsilon, read_number(config, "layer_norm_epsilon", 1e-5, 0, 1));
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    name_exaone3_tensors(shape, model);
    RopeDefaults rope;
    rope.theta = 500000;
    RETURN_IF_ERROR(set_rope(config, rope, model));
    RETURN_IF_ERROR(set_windows(
        config, 0, [](size_t) { return false; }, model));
    RETURN_IF_ERROR(set_attention_biases(config, false, model));
    RETURN_IF_ERROR(set_feed_forward_biases(config, model));
    return set_activation(config, known_key(config, "activation_function", "hidden_act"),
                          Activation::silu, model);
}

Status describe_exaone4(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.bos = 0;
    defaults.eos = {2};
    RETURN_IF_ERROR(describe_both(config, defaults, model));
    set_norms_after(model);
    return set_activation(config, "hidden_act", Activation::silu, model);
}

Status describe_exaone_moe(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.bos = 1;
    defaults.eos = {53};
    RETURN_IF_ERROR(describe_both(config, defaults, model));
    RETURN_IF_ERROR(set_exaone_experts(config, model));
    pass_over("mtp.", model); // predict further tokens
    return set_activation(config, "hidden_act", Activation::silu, model);
}

} // namespace batchllm
