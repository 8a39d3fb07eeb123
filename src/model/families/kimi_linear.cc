// Kimi Linear: delta nets whose keys' channels decay differently in most layers, latent attention
// without a rope in the others; experts beside shared ones, the first layers dense.
#include <algorithm>

#include "model/families/deepseek.h"
#include "model/families/families.h"

namespace batchllm {
namespace {

Status take_list(const JsonValue &list, bool kda, std::vector<int> *kinds) {
    ASSIGN_OR_RETURN(const auto numbers, list.elements());
    for (const JsonValue &item : numbers) { // from 1 on
        ASSIGN_OR_RETURN(const int64_t number,
                         item.integer(1, static_cast<int64_t>(kinds->size())));
        int &kind = (*kinds)[static_cast<size_t>(number - 1)];
        if (kind >= 0) return item.fail("the layer is listed twice");
        kind = kda ? 1 : 0;
    }
    return {};
}

// One entry per layer, true for a delta net.
Result<std::vector<bool>> read_kimi_delta_layers(const JsonValue &config, size_t layers) {
    std::vector<bool> delta(layers);
    for (size_t i = 0; i < layers; ++i) delta[i] = i == 0 || i % 4 != 0;
    const auto object = config.given("linear_attn_config");
    if (const auto types = config.given("layer_types")) {
        ASSIGN_OR_RETURN(const auto list, read_layer_types(*types, layers));
        for (size_t i = 0; i < layers; ++i) {
            ASSIGN_OR_RETURN(const std::string type, list[i].string());
            delta[i] = type == "linear_attention";
            if (!delta[i] && type != "full_attention") {
                return list[i].unsupported(
                    "only linear_attention and full_attention are supported");
            }
        }
    } else if (object && object->given("full_attn_layers") && object->given("kda_layers")) {
        std::vector<int> kinds(layers, -1);
        RETURN_IF_ERROR(take_list(*object->given("full_attn_layers"), false, &kinds));
        RETURN_IF_ERROR(take_list(*object->given("kda_layers"), true, &kinds));
        for (size_t i = 0; i < layers; ++i) {
            if (kinds[i] < 0) {
                return object->fail("does not list layer " + std::to_string(i + 1));
            }
            delta[i] = kinds[i] == 1;
        }
    }
    if (std::find(delta.begin(), delta.end(), false) != delta.end()) return delta;
    return error(BATCHLLM_ERROR_UNSUPPORTED,
                 "%s: a model without a layer of attention is not supported",
                 config.file().c_str());
}

// Without its tensors.
Result<ChannelDeltaNet> read_delta(const JsonValue &config) {
    const auto object = config.given("linear_attn_config");
    const auto read = [&](const char *of_object, const char *key, int32_t otherwise, int32_t most) {
        const bool there = object && object->given(of_object);
        return there ? read_count(*object, of_object, otherwise, most)
                     : read_count(config, key, otherwise, most);
    };
    ChannelDeltaNet net;
    ASSIGN_OR_RETURN(net.key_heads, read("num_heads", "linear_num_heads", 32, 1 << 14));
    ASSIGN_OR_RETURN(net.key_dim, read("head_dim", "linear_head_dim", 128, 1024));
    const bool there = object && object->given("short_conv_kernel_size");
    ASSIGN_OR_RETURN(net.width, there
                                    ? read_convolution_width(*object, "short_conv_kernel_size", 4)
                                    : read_convolution_width(config, "linear_conv_kernel_dim", 4));
    net.value_heads = net.key_heads;
    net.value_dim = net.gate_rank = net.key_dim;
    return net;
}

ChannelDeltaNet named_delta(const ChannelDeltaNet &shape, const std::string &prefix, int64_t hidden,
                            float epsilon) {
    ChannelDeltaNet net = shape;
    const int64_t size = net.values_size();
    for (const char *part : {"q", "k", "v"}) {
        net.input.push_back(named_weight(prefix + part + "_proj", size, hidden).values);
        net.convolution.push_back(
            named_convolution(prefix + part + "_conv1d", size, 0, size, net.width));
    }
    net.input.push_back(named_weight(prefix + "g_a_proj", net.gate_rank, hidden).values);
    net.input.push_back(named_weight(prefix + "b_proj", net.value_heads, hidden).values);
    net.input.push_back(named_weight(prefix + "f_a_proj", net.gate_rank, hidden).values);
    net.z = named_weight(prefix + "g_b_proj", size, net.gate_rank);
    net.a = named_weight(prefix + "f_b_proj", size, net.gate_rank);
    net.decay = named_vector(prefix + "A_log", net.value_heads);
    net.step_bias = named_vector(prefix + "dt_bias", size);
    net.norm = named_norm(NormKind::rms, prefix + "o_norm", net.value_dim, epsilon);
    net.o = named_weight(prefix + "o_proj", hidden, size);
    return net;
}

Status set_mixers(const JsonValue &config, Model *model) {
    ASSIGN_OR_RETURN(const auto delta, read_kimi_delta_layers(config, model->layers.size()));
    ASSIGN_OR_RETURN(const ChannelDeltaNet shape, read_delta(config));
    if (const auto flag = config.given("mla_use_nope")) {
        ASSIGN_OR_RETURN(const bool none, flag->boolean());
        if (!none) return flag->unsupported("latent attention with a rope is not supported here");
    }
    for (size_t i = 0; i < delta.size(); ++i) {
        if (!delta[i]) continue;
        model->layers[i].mixer = named_delta(shape, layer_prefix(i) + "self_attn.", model->hidden,
                                             model->final_norm.epsilon);
    }
    LatentDefaults latent;
    latent.q_rank = 0;
    latent.turns = false;
    return set_latents(config, config, latent, model);
}

Result<Router> read_router(const JsonValue &config, const ExpertCounts &counts) {
    if (const auto given = config.given("moe_router_activation_func")) {
        ASSIGN_OR_RETURN(const std::string name, given->string());
        if (name != "sigmoid") return given->unsupported("only sigmoid is supported");
    }
    Router router;
    router.kind = RouterKind::sigmoid;
    router.chosen = counts.chosen;
    const char *normalised = known_key(config, "moe_renormalize", "norm_topk_prob");
    ASSIGN_OR_RETURN(router.normalised, read_flag(config, normalised, true));
    ASSIGN_OR_RETURN(const double scale,
                     read_number(config, "routed_scaling_factor", 2.446, 1e-9, 1e9));
    router.scale = static_cast<float>(scale);
    RETURN_IF_ERROR(
        read_groups(config, counts, &router, known_key(config, "num_expert_group", "n_group")));
    return router;
}

// One entry per layer, true for experts.
Result<std::vector<bool>> read_kimi_sparse_layers(const JsonValue &config, size_t layers) {
    if (const auto every = config.given("moe_layer_freq"); every && !every->integer(1, 1).ok()) {
        return every->unsupported("only 1 is supported");
    }
    return read_layers_with_experts(config, layers);
}

Status set_experts_of_kimi(const JsonValue &config, Model *model) {
    ASSIGN_OR_RETURN(
        const ExpertCounts counts,
        read_expert_counts(config, {"num_experts", "num_local_experts"}, 256, 8, *model,
                           known_key(config, "num_experts_per_token", "num_experts_per_tok")));
    ASSIGN_OR_RETURN(const Router router, read_router(config, counts));
    ASSIGN_OR_RETURN(const int32_t width,
                     read_count(config, "moe_intermediate_size", 1024, 1 << 20));
    ASSIGN_OR_RETURN(
        const int32_t shared,
        read_count(config, known_key(config, "num_shared_experts", "n_shared_experts"), 1, 64));
    ASSIGN_OR_RETURN(const auto sparse, read_kimi_sparse_layers(config, model->layers.size()));
    for (size_t i = 0; i < sparse.size(); ++i) {
        // transformers also saves dense layers under this name.
        const std::string published = layer_prefix(i) + "block_sparse_moe.";
        const std::string prefix = layer_prefix(i) + "mlp.";
        model->renamed.push_back({published, prefix});
        if (!sparse[i]) continue;
        set_experts_beside_shared(prefix, {counts.all, width, "w1", "w3", "w2"}, router,
                                  "gate.e_score_correction_bias", shared, model->hidden,
                                  &model->layers[i]);
    }
    return {};
}

} // namespace

Status describe_kimi_linear(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 163840;
    defaults.hidden = 2304;
    defaults.intermediate = 9216;
    defaults.layers = 27;
    defaults.head_dim = 64;
    defaults.max_positions = 1048576;
    defaults.epsilon = 1e-5;
    defaults.bos = 163584;
    defaults.eos = {163586};
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    ASSIGN_OR_RETURN(model->max_positions,
                     read_count(config, "model_max_length", model->max_positions, 1 << 30));
    describe_decoder(shape, model);
    RETURN_IF_ERROR(set_mixers(config, model));
    RETURN_IF_ERROR(set_experts_of_kimi(config, model));
    ASSIGN_OR_RETURN(const Activation activation,
                     read_activation(config, "hidden_act", Activation::silu));
    if (activation == Activation::silu) return {};
    return config.at("hidden_act")->unsupported("only silu is supported");
}

} // namespace batchllm
