// Hunyuan: Llama with norms of each head behind the rope. Its sizes with experts have them in every
// layer, beside a shared one.
#include "model/config.h"
#include "model/families/families.h"

namespace batchllm {
namespace {

// A number, or a list of one number per layer; all layers must have the same.
Result<int32_t> read_of_layers(const JsonValue &config, const char *key, int32_t otherwise,
                               int32_t most) {
    const auto value = config.given(key);
    if (!value || !value->is_array()) return read_count(config, key, otherwise, most);
    ASSIGN_OR_RETURN(const auto list, value->elements());
    int64_t all = otherwise;
    for (size_t i = 0; i < list.size(); ++i) {
        ASSIGN_OR_RETURN(const int64_t number, list[i].integer(1, most));
        if (i > 0 && number != all) return list[i].unsupported("layers must have the same number");
        all = number;
    }
    return static_cast<int32_t>(all);
}

Status describe_both(const JsonValue &config, DecoderShape *shape, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 290943;
    defaults.epsilon = 1e-5;
    defaults.bos = 1;
    defaults.eos = {2};
    ASSIGN_OR_RETURN(*shape, read_shape(config, defaults, model));
    describe_decoder(*shape, model);
    RopeDefaults rope;
    rope.alpha = true;
    RETURN_IF_ERROR(set_rope(config, rope, model));
    set_head_norms(model);
    for_each_attention(model, [](size_t i, Attention &attention) {
        const std::string name = layer_prefix(i) + "self_attn.";
        attention.norm_turned = true;
        attention.q_norm.weight.name = name + "query_layernorm.weight";
        attention.k_norm.weight.name = name + "key_layernorm.weight";
    });
    return set_attention_biases(config, false, model);
}

} // namespace

Status describe_hunyuan_dense(const JsonValue &config, Model *model) {
    DecoderShape shape;
    RETURN_IF_ERROR(describe_both(config, &shape, model));
    return set_activation(config, "hidden_act", Activation::silu, model);
}

Status describe_hunyuan_moe(const JsonValue &config, Model *model) {
    DecoderShape shape;
    RETURN_IF_ERROR(describe_both(config, &shape, model));
    ExpertsShape experts;
    experts.width = shape.intermediate;
    ASSIGN_OR_RETURN(experts.count, read_of_layers(config, "num_experts", 1, 1 << 10));
    Router router;
    router.normalised = true;
    ASSIGN_OR_RETURN(router.chosen, read_of_layers(config, "moe_topk", 1, 1 << 10));
    RETURN_IF_ERROR(
        check_experts(config, {"num_experts"}, {experts.count, router.chosen}, *model, "moe_topk"));
    for (size_t i = 0; i < model->layers.size(); ++i) {
        const std::string prefix = layer_prefix(i) + "mlp.";
        Layer &layer = model->layers[i];
        set_experts(prefix, experts, router, model->hidden, &layer);
        layer.experts()->router.weight =
            named_weight(prefix + "gate.wg", experts.count, model->hidden);
        add_shared_expert(named_feed_forward(prefix + "shared_mlp.", experts.width, model->hidden),
                          &layer);
    }
    return set_activation(config, "hidden_act", Activation::silu, model);
}

} // namespace batchllm
