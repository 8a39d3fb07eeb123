// DeepSeek V2 and V3 (also Moonlight and Kimi K2), GLM-4.7-Flash and Mistral Small 4: latent attention;
// experts beside shared ones, the first layers dense. Youtu-LLM: all layers are.
#include <cmath>

#include "model/families/deepseek.h"
#include "model/families/families.h"
#include "model/families/ministral3.h"

namespace batchllm {
namespace {

constexpr int32_t most_size = 1 << 16;
constexpr float inner_epsilon = 1e-6F; // of the norms within attention, whatever the others have

// The rope of Mistral 4's class, if a configuration has no rope keys.
constexpr std::string_view mistral4_rope = R"({"rope_parameters": {"rope_type": "yarn",
    "rope_theta": 10000.0, "factor": 128.0, "original_max_position_embeddings": 8192,
    "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1}})";

Result<Latent> read_latent(const JsonValue &config, const LatentDefaults &defaults,
                           int32_t *q_rank) {
    Latent latent;
    ASSIGN_OR_RETURN(latent.rank, read_count(config, "kv_lora_rank", defaults.rank, most_size));
    ASSIGN_OR_RETURN(latent.plain,
                     read_count(config, "qk_nope_head_dim", defaults.plain, most_size));
    ASSIGN_OR_RETURN(latent.turned,
                     read_count(config, "qk_rope_head_dim", defaults.turned, most_size));
    ASSIGN_OR_RETURN(latent.value_dim,
                     read_count(config, "v_head_dim", defaults.value_dim, most_size));
    const bool none = config.find("q_lora_rank") && !config.given("q_lora_rank");
    *q_rank = 0;
    if (!none) {
        ASSIGN_OR_RETURN(*q_rank, read_count(config, "q_lora_rank", defaults.q_rank, most_size));
    }
    return latent;
}

// YaRN's "mscale_all_dim" also scales the scores.
Result<double> read_score_scale(const JsonValue &config) {
    auto rope = config.given("rope_parameters");
    if (!rope) rope = config.given("rope_scaling");
    if (!rope) return 1.0;
    const auto type = rope->given("rope_type");
    const auto older = rope->given("type");
    if (!type && !older) return 1.0;
    ASSIGN_OR_RETURN(const std::string name, (type ? *type : *older).string());
    ASSIGN_OR_RETURN(const double all, read_number(*rope, "mscale_all_dim", 0, 0, 1e6));
    if (name == "default" || all == 0) return 1.0;
    ASSIGN_OR_RETURN(const double factor, read_number(*rope, "factor", 1, 0, 1e6));
    const double scale = factor <= 1 ? 1 : 0.1 * all * std::log(factor) + 1;
    return scale * scale;
}

// The rope's index in the model's list.
Result<int32_t> add_latent_rope(const JsonValue &of_rope, const LatentDefaults &defaults,
                                const Latent &shape, Model *model) {
    RopeDefaults rope;
    rope.pairs = defaults.pairs;
    if (defaults.of_heads) {
        rope.partial = true;
        rope.part = static_cast<double>(shape.turned) / shape.query_dim();
    }
    const int32_t of = defaults.of_heads ? shape.query_dim() : shape.turned;
    ASSIGN_OR_RETURN(Rope read, read_rope(of_rope, *model, of, rope));
    if (read.dims() != shape.turned) {
        return of_rope.fail("its rope has " + std::to_string(read.dims()) +
                            " elements, but qk_rope_head_dim is " + std::to_string(shape.turned));
    }
    return add_rope(model, std::move(read));
}

Status refuse_other(const JsonValue &config, const char *key, int64_t only) {
    const auto value = config.given(key);
    if (!value || value->integer(only, only).ok()) return {};
    return value->unsupported("only " + std::to_string(only) + " is supported");
}

} // namespace

Status set_latents(const JsonValue &config, const JsonValue &of_rope,
                   const LatentDefaults &defaults, Model *model) {
    int32_t q_rank = 0;
    ASSIGN_OR_RETURN(const Latent shape, read_latent(config, defaults, &q_rank));
    int32_t turned = -1;
    if (defaults.turns) {
        ASSIGN_OR_RETURN(turned, add_latent_rope(of_rope, defaults, shape, model));
    }
    ASSIGN_OR_RETURN(const double scale, read_score_scale(of_rope));
    ASSIGN_OR_RETURN(const bool biases, read_flag(config, "attention_bias", false));
    const int64_t hidden = model->hidden;
    for_each_attention(model, [&](size_t i, Attention &attention) {
        const std::string name = layer_prefix(i) + "self_attn.";
        const int32_t heads = attention.heads;
        attention = {};
        attention.heads = heads;
        attention.kv_heads = 1;
        attention.head_dim = shape.rank + shape.turned;
        attention.rope = turned;
        attention.scale = scale / std::sqrt(static_cast<double>(shape.query_dim()));
        Latent &latent = attention.latent = shape;
        const int64_t queries = int64_t{heads} * shape.query_dim();
        if (q_rank == 0) {
            attention.q = named_weight(name + "q_proj", queries, hidden);
        } else {
            latent.q_down = named_weight(name + "q_a_proj", q_rank, hidden);
            latent.q_norm =
                named_norm(NormKind::rms, name + "q_a_layernorm", q_rank, inner_epsilon);
            attention.q = named_weight(name + "q_b_proj", queries, q_rank);
        }
        latent.down = named_weight(name + "kv_a_proj_with_mqa", attention.head_dim, hidden);
        latent.norm = named_norm(NormKind::rms, name + "kv_a_layernorm", shape.rank, inner_epsilon);
        latent.up = named_weight(name + "kv_b_proj",
                                 int64_t{heads} * (shape.plain + shape.value_dim), shape.rank);
        attention.o = named_weight(name + "o_proj", hidden, attention.result_size());
        if (!biases) return;
        if (q_rank != 0) add_bias(&latent.q_down);
        add_bias(&latent.down);
        add_bias(&attention.o);
    });
    // Layers after the last one predict further tokens.
    model->passed_over.push_back(layer_prefix(model->layers.size()));
    return {};
}

namespace {

Result<Router> read_v2_router(const JsonValue &config, const ExpertCounts &counts) {
    Router router;
    router.chosen = counts.chosen;
    ASSIGN_OR_RETURN(const double scale,
                     read_number(config, "routed_scaling_factor", 1, 1e-9, 1e9));
    router.scale = static_cast<float>(scale);
    ASSIGN_OR_RETURN(const bool normalised, read_flag(config, "norm_topk_prob", false));
    if (normalised) {
        return config.at("norm_topk_prob")
            ->unsupported("weights that sum to one are not supported");
    }
    const auto method = config.given("topk_method");
    if (!method) return router;
    ASSIGN_OR_RETURN(const std::string name, method->string());
    if (name == "greedy") return router;
    if (name != "group_limited_greedy") {
        return method->unsupported("only greedy and group_limited_greedy are supported");
    }
    router.group_best = 1;
    RETURN_IF_ERROR(read_groups(config, counts, &router));
    return router;
}

Status set_v2_experts(const JsonValue &config, Model *model) {
    RETURN_IF_ERROR(config.at("num_experts_per_tok").status());
    ASSIGN_OR_RETURN(
        const ExpertCounts counts,
        read_expert_counts(config, {"n_routed_experts", "num_experts"}, 64, 1, *model));
    ASSIGN_OR_RETURN(const Router router, read_v2_router(config, counts));
    GroupedExperts experts;
    experts.width = 1407;
    experts.shared = 2;
    return set_experts_and_shared(config, experts, counts, router, model);
}

// How many layers come before those with experts: "mlp_layer_types" names each layer's kind.
Result<int32_t> read_dense(const JsonValue &config, size_t layers) {
    const auto types = config.given("mlp_layer_types");
    if (!types) return 1;
    ASSIGN_OR_RETURN(const auto list, read_layer_types(*types, layers, "mlp_layer_types"));
    int32_t dense = 0;
    for (size_t i = 0; i < list.size(); ++i) {
        ASSIGN_OR_RETURN(const std::string type, list[i].string());
        if (type != "dense" && type != "sparse") {
            return list[i].unsupported("only dense and sparse are supported");
        }
        if (type == "sparse") continue;
        if (static_cast<int32_t>(i) != dense++) {
            return list[i].unsupported("dense layers must be the first ones");
        }
    }
    return dense;
}

// What V3 and those after it share: latents with a rope as "rope_interleave" says, and experts.
Status set_v3_layers(const JsonValue &config, const JsonValue &of_rope, LatentDefaults latent,
                     const GroupedExperts &experts, Model *model) {
    ASSIGN_OR_RETURN(latent.pairs, read_flag(config, "rope_interleave", true));
    RETURN_IF_ERROR(set_latents(config, of_rope, latent, model));
    RETURN_IF_ERROR(set_grouped_experts(config, experts, model));
    return set_activation(config, "hidden_act", Activation::silu, model);
}

} // namespace

Status describe_deepseek_v2(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 102400;
    defaults.head_dim = 64; // of the turned part
    defaults.bos = 1;
    defaults.eos = {2};
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    RETURN_IF_ERROR(set_latents(config, config, {}, model));
    RETURN_IF_ERROR(refuse_other(config, "moe_layer_freq", 1));
    RETURN_IF_ERROR(set_v2_experts(config, model));
    RETURN_IF_ERROR(set_activation(config, "hidden_act", Activation::silu, model));
    return set_feed_forward_biases(config, model);
}

Status describe_deepseek_v3(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 129280;
    defaults.hidden = 7168;
    defaults.intermediate = 18432;
    defaults.layers = 61;
    defaults.heads = 128;
    defaults.head_dim = 64;
    defaults.max_positions = 4096;
    defaults.bos = 0;
    defaults.eos = {1};
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    RETURN_IF_ERROR(refuse_other(config, "moe_layer_freq", 1));
    GroupedExperts experts;
    experts.counts = {256, 8};
    experts.width = 2048;
    experts.dense = 3;
    experts.router.normalised = true;
    experts.router.scale = 2.5F;
    experts.router.groups = 8;
    experts.router.chosen_groups = 4;
    return set_v3_layers(config, config, {}, experts, model);
}

Status describe_glm4_moe_lite(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 154880;
    defaults.hidden = 2048;
    defaults.intermediate = 10240;
    defaults.layers = 47;
    defaults.heads = 20;
    defaults.head_dim = 64;
    defaults.max_positions = 202752;
    defaults.epsilon = 1e-5;
    defaults.bos = 0;
    defaults.eos = {1};
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    GroupedExperts experts;
    experts.counts = {64, 4};
    experts.width = 1536;
    ASSIGN_OR_RETURN(experts.dense, read_dense(config, model->layers.size()));
    experts.router.normalised = true;
    experts.router.scale = 1.8F;
    return set_v3_layers(config, config, {768, 512, 192, 64, 256}, experts, model);
}

Status describe_youtu(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 128256;
    defaults.hidden = 2048;
    defaults.intermediate = 6144;
    defaults.heads = 16;
    defaults.head_dim = 64;
    defaults.max_positions = 131072;
    defaults.bos = 128000;
    defaults.eos = {128001};
    defaults.tied = true;
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    LatentDefaults latent;
    ASSIGN_OR_RETURN(latent.pairs, read_flag(config, "rope_interleave", true));
    RETURN_IF_ERROR(set_latents(config, config, latent, model));
    return set_activation(config, "hidden_act", Activation::silu, model);
}

Status describe_mistral4(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 131072;
    defaults.intermediate = 12288;
    defaults.layers = 36;
    defaults.head_dim = 128;
    defaults.max_positions = 1048576;
    defaults.bos = 1;
    defaults.eos = {2};
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    ASSIGN_OR_RETURN(const RopeKeys rope, RopeKeys::of(config, mistral4_rope));
    LatentDefaults latent{1024, 256, 64, 64, 128};
    latent.of_heads = true;
    GroupedExperts experts;
    experts.counts = {128, 4};
    experts.width = 2048;
    experts.router.normalised = true;
    experts.kind = RouterKind::softmax;
    RETURN_IF_ERROR(set_v3_layers(config, rope.value(), latent, experts, model));
    return set_long_scale(rope.value(), model);
}

} // namespace batchllm
