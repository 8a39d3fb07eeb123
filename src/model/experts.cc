// How families with experts describe them.
#include "model/config.h"

namespace batchllm {
namespace {

constexpr int32_t most_experts = 1024;
// In all layers together. Each takes about a kilobyte of the description, and a short file can ask for many.
constexpr size_t most_experts_in_all = 1 << 17;

// Refuses more, naming the key.
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
                                        int32_t chosen, const Model &model) {
    ExpertCounts counts{all, chosen};
    for (const std::string_view key : keys) {
        if (!config.given(key)) continue;
        ASSIGN_OR_RETURN(counts.all, read_count(config, key, all, most_experts));
        break;
    }
    RETURN_IF_ERROR(check_all(config, keys, counts.all, model.layers.size()));
    ASSIGN_OR_RETURN(counts.chosen,
                     read_count(config, "num_experts_per_tok", chosen, most_experts));
    if (counts.chosen <= counts.all) return counts;
    const std::string all_of_them = "there are " + std::to_string(counts.all) + " experts";
    if (const auto given = config.given("num_experts_per_tok")) return given->fail(all_of_them);
    return config.fail(all_of_them + ", and num_experts_per_tok, which is not given, is " +
                       std::to_string(chosen));
}

void set_experts(const std::string &prefix, const ExpertsShape &shape, Router router,
                 int64_t hidden, Layer *layer) {
    router.weight = named_weight(prefix + "gate", shape.count, hidden);
    layer->experts.router = std::move(router);
    layer->experts.each.clear();
    for (int32_t e = 0; e < shape.count; ++e) {
        const std::string name = prefix + "experts." + std::to_string(e) + ".";
        FeedForward expert;
        expert.width = shape.width;
        expert.activation = layer->feed_forward.activation;
        expert.gate = named_weight(name + shape.gate, shape.width, hidden);
        expert.up = named_weight(name + shape.up, shape.width, hidden);
        expert.down = named_weight(name + shape.down, hidden, shape.width);
        layer->experts.each.push_back(std::move(expert));
    }
    layer->feed_forward = {};
}

} // namespace batchllm
