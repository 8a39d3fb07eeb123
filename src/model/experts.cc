// How families with experts describe them.
#include "model/config.h"

namespace batchllm {
namespace {

constexpr int32_t most_experts = 1024;
// Limit over all layers. Each expert takes about a kilobyte of the description, and a short file
// can ask for many.
constexpr size_t most_experts_in_all = 1 << 17;

// Fails if there are more, naming the key.
Status check_all(const JsonValue &config, std::initializer_list<std::string_view> keys,
                 int32_t experts, size_t layers) {
    if (layers * static_cast<size_t>(experts) <= most_experts_in_all) return {};
    auto given = config.given("num_hidden_layers");
    for (const std::string_view key : keys) {
        if (!config.given(key)) continue;
        given = config.given(key);
        break;
    }
    return (given ? *given : config)
        .fail(std::to_string(layers) + " layers of so many experts are more than " +
              std::to_string(most_experts_in_all) + " experts in all");
}

} // namespace

Result<ExpertCounts> read_expert_counts(const JsonValue &config,
                                        std::initializer_list<std::string_view> keys, int32_t all,
                                        int32_t chosen, const Model &model,
                                        const char *chosen_key) {
    ExpertCounts counts{all, chosen};
    for (const std::string_view key : keys) {
        if (!config.given(key)) continue;
        ASSIGN_OR_RETURN(counts.all, read_count(config, key, all, most_experts));
        break;
    }
    ASSIGN_OR_RETURN(counts.chosen, read_count(config, chosen_key, chosen, most_experts));
    RETURN_IF_ERROR(check_experts(config, keys, counts, model, chosen_key));
    return counts;
}

Status check_experts(const JsonValue &config, std::initializer_list<std::string_view> keys,
                     const ExpertCounts &counts, const Model &model, const char *chosen_key) {
    RETURN_IF_ERROR(check_all(config, keys, counts.all, model.layers.size()));
    if (counts.chosen <= counts.all) return {};
    const std::string all_of_them = "there are " + std::to_string(counts.all) + " experts";
    if (const auto given = config.given(chosen_key)) return given->fail(all_of_them);
    return config.fail(all_of_them + ", and " + chosen_key + ", which is not given, is " +
                       std::to_string(counts.chosen));
}

void set_experts(const std::string &prefix, const ExpertsShape &shape, Router router,
                 int64_t hidden, Layer *layer) {
    router.weight = named_weight(prefix + "gate", shape.count, hidden);
    const FeedForward *replaced = layer->feed_forward();
    Experts experts;
    experts.router = std::move(router);
    for (int32_t e = 0; e < shape.count; ++e) {
        const std::string name = prefix + "experts." + std::to_string(e) + ".";
        FeedForward expert;
        expert.width = shape.width;
        if (replaced != nullptr) expert.activation = replaced->activation;
        if (shape.gate != nullptr) {
            expert.gate = named_weight(name + shape.gate, shape.width, hidden);
        }
        expert.up = named_weight(name + shape.up, shape.width, hidden);
        expert.down = named_weight(name + shape.down, hidden, shape.width);
        experts.each.push_back(std::move(expert));
    }
    layer->feed = std::move(experts);
}

void set_correction(const std::string &name, Layer *layer) {
    Experts &experts = *layer->experts();
    experts.router.correction = named_vector(name, static_cast<int64_t>(experts.each.size()));
}

SharedExperts &add_shared_expert(FeedForward shared, Layer *layer) {
    SharedExperts both{std::move(*layer->experts()), std::move(shared), {}, {}};
    return layer->feed.emplace<SharedExperts>(std::move(both));
}

void set_experts_beside_shared(const std::string &prefix, const ExpertsShape &shape, Router router,
                               const char *correction, int32_t shared, int64_t hidden,
                               Layer *layer) {
    set_experts(prefix, shape, std::move(router), hidden, layer);
    if (correction != nullptr) set_correction(prefix + correction, layer);
    add_shared_expert(named_feed_forward(prefix + "shared_experts.", shared * shape.width, hidden),
                      layer);
}

Status read_groups(const JsonValue &config, const ExpertCounts &counts, Router *router,
                   const char *groups_key) {
    ASSIGN_OR_RETURN(router->groups, read_count(config, groups_key, router->groups, counts.all));
    ASSIGN_OR_RETURN(router->chosen_groups,
                     read_count(config, "topk_group", router->chosen_groups, router->groups));
    const int32_t of_group = counts.all / router->groups;
    if (of_group * router->groups == counts.all &&
        (router->groups == 1 || of_group >= router->group_best) &&
        router->chosen_groups * of_group >= router->chosen) {
        return {};
    }
    const auto given = config.given(groups_key);
    return (given ? *given : config)
        .fail(std::to_string(counts.all) + " experts must divide into equal groups (" + groups_key +
              "), and topk_group of these must have at least " + std::to_string(router->chosen) +
              " experts");
}

Result<std::vector<bool>> read_layers_with_experts(const JsonValue &config, size_t layers) {
    ASSIGN_OR_RETURN(const int32_t dense,
                     read_count_or_zero(config, "first_k_dense_replace", 1, 4096));
    std::vector<bool> sparse(layers);
    for (size_t i = 0; i < layers; ++i) sparse[i] = i >= static_cast<size_t>(dense);
    const auto types = config.given("mlp_layer_types");
    if (!types) return sparse;
    ASSIGN_OR_RETURN(const auto list, read_layer_types(*types, layers, "mlp_layer_types"));
    for (size_t i = 0; i < layers; ++i) {
        ASSIGN_OR_RETURN(const std::string type, list[i].string());
        if (type != "dense" && type != "sparse") {
            return list[i].unsupported("only dense and sparse are supported");
        }
        sparse[i] = type == "sparse";
    }
    return sparse;
}

Result<Router> read_sigmoid_router(const JsonValue &config, const ExpertCounts &counts,
                                   std::string_view scale_key, double otherwise) {
    Router router;
    router.kind = RouterKind::sigmoid;
    router.chosen = counts.chosen;
    router.normalised = true;
    ASSIGN_OR_RETURN(const double scale, read_number(config, scale_key, otherwise, 1e-9, 1e9));
    router.scale = static_cast<float>(scale);
    return router;
}

Result<Router> read_grouped_router(const JsonValue &config, const ExpertCounts &counts,
                                   Router otherwise) {
    Router router = std::move(otherwise);
    router.kind = RouterKind::sigmoid;
    router.chosen = counts.chosen;
    ASSIGN_OR_RETURN(router.normalised, read_flag(config, "norm_topk_prob", router.normalised));
    ASSIGN_OR_RETURN(const double scale,
                     read_number(config, "routed_scaling_factor", router.scale, 1e-9, 1e9));
    router.scale = static_cast<float>(scale);
    RETURN_IF_ERROR(read_groups(config, counts, &router));
    return router;
}

Status set_grouped_experts(const JsonValue &config, const GroupedExperts &defaults, Model *model) {
    ASSIGN_OR_RETURN(const ExpertCounts counts,
                     read_expert_counts(config, {"n_routed_experts", "num_local_experts"},
                                        defaults.counts.all, defaults.counts.chosen, *model));
    ASSIGN_OR_RETURN(Router router, read_grouped_router(config, counts, defaults.router));
    router.kind = defaults.kind;
    return set_experts_and_shared(config, defaults, counts, router, model);
}

Status set_experts_and_shared(const JsonValue &config, const GroupedExperts &defaults,
                              const ExpertCounts &counts, const Router &router, Model *model) {
    ExpertsShape experts;
    experts.count = counts.all;
    ASSIGN_OR_RETURN(experts.width,
                     read_count(config, "moe_intermediate_size", defaults.width, 1 << 20));
    ASSIGN_OR_RETURN(const int32_t shared,
                     read_count(config, "n_shared_experts", defaults.shared, 64));
    ASSIGN_OR_RETURN(const int32_t dense,
                     read_count_or_zero(config, "first_k_dense_replace", defaults.dense, 4096));
    const char *correction =
        router.kind == RouterKind::sigmoid ? "gate.e_score_correction_bias" : nullptr;
    for (size_t i = static_cast<size_t>(dense); i < model->layers.size(); ++i) {
        set_experts_beside_shared(layer_prefix(i) + "mlp.", experts, router, correction, shared,
                                  model->hidden, &model->layers[i]);
    }
    return {};
}

} // namespace batchllm
