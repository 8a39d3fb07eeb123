#include "step/experts.h"

#include <algorithm>

#include "four_bits/product.h"

namespace batchllm::cuda {

Status StepExperts::allocate(const StepBuffers &buffers) {
    if (buffers[StepBuffer::router_logits] == 0) return {};
    static_assert(kRoutedTokens == routed_tokens && kTileRows == expert_tile_rows &&
                  sizeof(ExpertTile) == expert_tile_bytes && kScaleBlock == scaled_elements);
    const char *what = "a step's buffers of experts";
    const int64_t each = buffers[StepBuffer::turns] / 4, count = 4;
    const int64_t tiles = buffers[StepBuffer::expert_tiles] - count;
    ASSIGN_OR_RETURN(logits_, zeroed_memory(buffers[StepBuffer::router_logits], what));
    ASSIGN_OR_RETURN(experts_of_, zeroed_memory(each, what));
    ASSIGN_OR_RETURN(weights_, zeroed_memory(each, what));
    ASSIGN_OR_RETURN(counts_, zeroed_memory(buffers[StepBuffer::turn_counts], what));
    ASSIGN_OR_RETURN(token_of_, zeroed_memory(each, what));
    ASSIGN_OR_RETURN(turn_of_, zeroed_memory(each, what));
    ASSIGN_OR_RETURN(tiles_, zeroed_memory(tiles, what));
    ASSIGN_OR_RETURN(tile_count_, zeroed_memory(count, what));
    ASSIGN_OR_RETURN(activated_, zeroed_memory(buffers[StepBuffer::expert_activated], what));
    ASSIGN_OR_RETURN(activated_scales_, zeroed_memory(buffers[StepBuffer::expert_scales], what));
    ASSIGN_OR_RETURN(made_, zeroed_memory(buffers[StepBuffer::expert_made], what));
    return {};
}

RoutingArguments StepExperts::routing(const Experts &experts, const DeviceExperts &weights,
                                      int64_t rows) const {
    const Router &router = experts.router;
    RoutingArguments a{};
    a.kind = router.kind;
    a.logits = logits();
    a.stride = static_cast<int32_t>(weights.router.rows);
    a.bias = weights.router_bias;
    a.correction = weights.correction;
    a.expert_scale = weights.expert_scale;
    a.tokens = static_cast<int32_t>(rows);
    a.experts = static_cast<int32_t>(experts.each.size());
    a.chosen = router.chosen;
    a.groups = router.groups;
    a.chosen_groups = router.chosen_groups;
    a.normalised = router.normalised;
    a.scale = router.scale;
    a.epsilon = router.epsilon;
    a.jitter = router.jitter;
    a.group_best = router.group_best;
    a.experts_of = experts_of_.as<int32_t>();
    a.weights = weights_.as<float>();
    a.counts = counts_.as<int32_t>();
    a.token_of = token_of_.as<int32_t>();
    a.turn_of = turn_of_.as<int32_t>();
    a.tiles = tiles_.as<ExpertTile>();
    a.tile_count = tile_count_.as<int32_t>();
    return a;
}

cudaError_t StepExperts::launch(const GroupedArguments &a, const std::optional<Packing> &packing,
                                cudaStream_t stream) const {
    if (!packing) return launch_grouped(kernel_, a, sms_, stream);
    if (packing->form == PackedForm::mxfp4_e4m3) return launch_mxfp4_e4m3_sm90(a, sms_, stream);
    FourBitArguments packed{};
    packed.element = packed.y_type = a.element;
    packed.w_shape = {packing->form, a.rows, a.columns};
    packed.split = packing->split;
    packed.w = static_cast<const std::byte *>(a.w);
    packed.x = a.x;
    packed.factors = packing->factors;
    packed.bias = a.bias;
    packed.gated = a.gated;
    packed.activation = a.activation;
    packed.squared = squares(a);
    packed.y = a.y;
    packed.splits = 1;
    packed.row_of = a.row_of;
    packed.tiles = a.tiles;
    packed.tile_count = a.tile_count;
    return kernel_ == GroupedKernel::sm90 ? launch_four_bits_sm90(packed, sms_, stream)
                                          : launch_four_bits_sm80(packed, sms_, stream);
}

Status StepExperts::products(const Experts &experts, const DeviceExperts &weights, const Input &x,
                             Profile *profile, cudaStream_t stream) {
    const FeedForward &expert = experts.each[0];
    GroupedArguments a{};
    a.element = weights.in_e4m3() ? DType::e4m3 : element_;
    a.tiles = tiles_.as<ExpertTile>();
    a.tile_count = tile_count_.as<int32_t>();
    a.x = x.data;
    a.row_of = token_of_.as<int32_t>();
    a.w = weights.gate_up;
    a.bias = weights.gate_up_bias;
    a.gated = bool(expert.gate);
    a.rows = (a.gated ? 2 : 1) * expert.width;
    a.columns = model_.hidden;
    a.activation = expert.activation;
    a.squared = !a.gated; // supported.cc has seen that it is this activation
    a.y = activated_.data();
    a.scales = {weights.gate_up_scaling, x.scales, weights.gate_up_scales,
                activated_scales_.as<float>(), element_};
    RETURN_IF_CUDA(launch(a, weights.gate_up_packing, stream));
    RETURN_IF_ERROR(profile->mark(Part::gate_up, stream));
    a.x = activated_.data();
    a.row_of = nullptr;
    a.w = weights.down;
    a.bias = weights.down_bias;
    a.rows = model_.hidden;
    a.columns = expert.width;
    a.gated = a.squared = false;
    a.y = made_.data();
    a.scales = {weights.down_scaling, activated_scales_.as<float>(), weights.down_scales, nullptr,
                element_};
    RETURN_IF_CUDA(launch(a, weights.down_packing, stream));
    return profile->mark(Part::down, stream);
}

Status StepExperts::run(const Layer &layer, const DeviceExperts &weights, const Input &x,
                        const AddNormArguments &end, Profile *profile, cudaStream_t stream) {
    const Experts &experts = *layer.experts();
    const SharedExperts *both = layer.shared();
    const RoutingArguments routed = routing(experts, weights, end.count);
    RETURN_IF_CUDA(launch_routing(routed, stream));
    RETURN_IF_ERROR(profile->mark(Part::routing, stream));
    RETURN_IF_ERROR(products(experts, weights, x, profile, stream));
    CombineArguments sum{end,
                         made_.data(),
                         routed.turn_of,
                         routed.weights,
                         both != nullptr && both->gate ? logits() + routed.experts : nullptr,
                         routed.stride,
                         routed.chosen};
    if (both == nullptr) sum.add.delta = nullptr;
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
        if (layer.experts() == nullptr) continue;
        turns.resize(std::max(turns.size(), layer.experts()->each.size()));
    }
    for (const ExpertTile &tile : tiles) {
        turns[static_cast<size_t>(tile.expert)] = tile.end - tile.begin;
    }
    return turns;
}

} // namespace batchllm::cuda
