#include "step/experts.h"

#include <algorithm>

namespace batchllm::cuda {

Status StepExperts::allocate(int64_t rows, const DeviceWeights &weights) {
    int64_t experts = 0, chosen = 0, width = 0, logits = 0;
    const bool in_e4m3 =
        std::any_of(weights.layers.begin(), weights.layers.end(),
                    [](const DeviceLayer &layer) { return layer.experts.in_e4m3(); });
    for (const Layer &layer : model_.layers) {
        if (!layer.experts) continue;
        const auto count = static_cast<int64_t>(layer.experts.each.size());
        experts = std::max(experts, count);
        logits = std::max(logits, (count + (layer.shared_gate ? 1 : 0) + 15) / 16 * 16);
        chosen = std::max<int64_t>(chosen, layer.experts.router.chosen);
        width = std::max<int64_t>(width, layer.experts.each[0].width);
    }
    if (experts == 0) return {};
    const int64_t turns = rows * chosen, element = dtype_bytes(element_);
    const char *what = "a step's buffers of experts";
    ASSIGN_OR_RETURN(logits_, zeroed_memory(rows * logits * 4, what));
    ASSIGN_OR_RETURN(experts_of_, zeroed_memory(turns * 4, what));
    ASSIGN_OR_RETURN(weights_, zeroed_memory(turns * 4, what));
    ASSIGN_OR_RETURN(counts_, zeroed_memory(routing_blocks(rows) * experts * 4, what));
    ASSIGN_OR_RETURN(token_of_, zeroed_memory(turns * 4, what));
    ASSIGN_OR_RETURN(turn_of_, zeroed_memory(turns * 4, what));
    const auto tile = static_cast<int64_t>(sizeof(ExpertTile));
    ASSIGN_OR_RETURN(tiles_, zeroed_memory(most_tiles(turns, experts) * tile, what));
    ASSIGN_OR_RETURN(tile_count_, zeroed_memory(4, what));
    ASSIGN_OR_RETURN(activated_, zeroed_memory(turns * width * element, what));
    if (in_e4m3) {
        const int64_t groups = width / kScaleBlock;
        ASSIGN_OR_RETURN(activated_scales_, zeroed_memory(turns * groups * 4, what));
    }
    ASSIGN_OR_RETURN(made_, zeroed_memory(turns * model_.hidden * element, what));
    return {};
}

RoutingArguments StepExperts::routing(const Layer &layer, const DeviceExperts &weights,
                                      int64_t rows) const {
    const Router &router = layer.experts.router;
    RoutingArguments a{};
    a.kind = router.kind;
    a.logits = logits();
    a.stride = static_cast<int32_t>(weights.router.rows);
    a.bias = weights.router_bias;
    a.correction = weights.correction;
    a.tokens = static_cast<int32_t>(rows);
    a.experts = static_cast<int32_t>(layer.experts.each.size());
    a.chosen = router.chosen;
    a.groups = router.groups;
    a.chosen_groups = router.chosen_groups;
    a.normalised = router.normalised;
    a.scale = router.scale;
    a.experts_of = experts_of_.as<int32_t>();
    a.weights = weights_.as<float>();
    a.counts = counts_.as<int32_t>();
    a.token_of = token_of_.as<int32_t>();
    a.turn_of = turn_of_.as<int32_t>();
    a.tiles = tiles_.as<ExpertTile>();
    a.tile_count = tile_count_.as<int32_t>();
    return a;
}

Status StepExperts::products(const Layer &layer, const DeviceExperts &weights, const Input &x,
                             Profile *profile, cudaStream_t stream) {
    const FeedForward &expert = layer.experts.each[0];
    GroupedArguments a{};
    a.element = weights.in_e4m3() ? DType::e4m3 : element_;
    a.tiles = tiles_.as<ExpertTile>();
    a.tile_count = tile_count_.as<int32_t>();
    a.x = x.data;
    a.row_of = token_of_.as<int32_t>();
    a.w = weights.gate_up;
    a.bias = weights.gate_up_bias;
    a.rows = 2 * expert.width;
    a.columns = model_.hidden;
    a.gated = true;
    a.activation = expert.activation;
    a.y = activated_.data();
    a.scales = {weights.gate_up_scaling, x.scales, weights.gate_up_scales,
                activated_scales_.as<float>(), element_};
    RETURN_IF_CUDA(launch_grouped(kernel_, a, sms_, stream));
    RETURN_IF_ERROR(profile->mark(Part::gate_up, stream));
    a.x = activated_.data();
    a.row_of = nullptr;
    a.w = weights.down;
    a.bias = weights.down_bias;
    a.rows = model_.hidden;
    a.columns = expert.width;
    a.gated = false;
    a.y = made_.data();
    a.scales = {weights.down_scaling, activated_scales_.as<float>(), weights.down_scales, nullptr,
                element_};
    RETURN_IF_CUDA(launch_grouped(kernel_, a, sms_, stream));
    return profile->mark(Part::down, stream);
}

Status StepExperts::run(const Layer &layer, const DeviceExperts &weights, const Input &x,
                        const AddNormArguments &end, Profile *profile, cudaStream_t stream) {
    const RoutingArguments routed = routing(layer, weights, end.count);
    RETURN_IF_CUDA(launch_routing(routed, stream));
    RETURN_IF_ERROR(profile->mark(Part::routing, stream));
    RETURN_IF_ERROR(products(layer, weights, x, profile, stream));
    CombineArguments sum{end,
                         made_.data(),
                         routed.turn_of,
                         routed.weights,
                         layer.shared_gate ? logits() + routed.experts : nullptr,
                         routed.stride,
                         routed.chosen};
    if (layer.feed_forward.width == 0) sum.add.delta = nullptr;
    RETURN_IF_CUDA(launch_combine(sum, stream));
    return profile->mark(Part::combine, stream);
}

Result<std::vector<int64_t>> StepExperts::turns_of_each() const {
    RETURN_IF_CUDA(cudaDeviceSynchronize());
    int32_t count = 0;
    if (tiles_.bytes() == 0) return std::vector<int64_t>();
    RETURN_IF_CUDA(cudaMemcpy(&count, tile_count_.data(), 4, cudaMemcpyDeviceToHost));
    std::vector<ExpertTile> tiles(static_cast<size_t>(count));
    RETURN_IF_CUDA(cudaMemcpy(tiles.data(), tiles_.data(), tiles.size() * sizeof(ExpertTile),
                              cudaMemcpyDeviceToHost));
    std::vector<int64_t> turns;
    for (const Layer &layer : model_.layers) {
        turns.resize(std::max(turns.size(), layer.experts.each.size()));
    }
    for (const ExpertTile &tile : tiles) {
        turns[static_cast<size_t>(tile.expert)] = tile.end - tile.begin;
    }
    return turns;
}

} // namespace batchllm::cuda
