#include "step/experts.h"

#include <algorithm>

#include "elementwise/quantize.h"
#include "experts/adapted.h"
#include "four_bits/product.h"
#include "gated/adapted_activation.h"

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

StepExperts::AdapterRoom StepExperts::adapter_room(int64_t rows) const {
    int64_t turns = 0, width = 0;
    AdapterRoom room;
    for (const Layer &layer : model_.layers) {
        const Experts *experts = layer.experts();
        if (experts == nullptr) continue;
        const auto each = static_cast<int64_t>(experts->each.size());
        room.tile_adapters =
            std::max(room.tile_adapters, most_tiles(rows * experts->router.chosen, each) *
                                             int64_t{sizeof(TileAdapters)});
        const int64_t parts = experts->each[0].gate ? 2 : 1;
        turns = std::max(turns, rows * experts->router.chosen);
        width = std::max(width, parts * experts->each[0].width);
        if (experts->router.weighs_input) width = std::max<int64_t>(width, model_.hidden);
    }
    if (kernel_ != GroupedKernel::sm90 || element_ == DType::f32) room.tile_adapters = 0;
    // gate_up: of products that do not add; ranks may grow.
    room.tiles = turns * static_cast<int64_t>(sizeof(AdapterTile));
    room.in_tiles = turns;
    room.gate_up = turns * width * dtype_bytes(element_);
    room.whole = activated_scales_.bytes() > 0 ? room.gate_up / 2 : 0;
    return room;
}

Status StepExperts::make_room_for_adapters(int64_t rows) {
    if (gate_up_.bytes() > 0) return {};
    const char *what = "adapters of experts";
    const AdapterRoom room = adapter_room(rows);
    ASSIGN_OR_RETURN(adapted_tiles_, DeviceMemory::create(room.tiles, what));
    ASSIGN_OR_RETURN(adapted_tile_count_, DeviceMemory::create(sizeof(int32_t), what));
    ASSIGN_OR_RETURN(in_adapted_tiles_, DeviceMemory::create(room.in_tiles, what));
    ASSIGN_OR_RETURN(tile_adapters_, DeviceMemory::create(room.tile_adapters, what));
    ASSIGN_OR_RETURN(gate_up_, DeviceMemory::create(room.gate_up, what));
    if (room.whole > 0) {
        ASSIGN_OR_RETURN(whole_, DeviceMemory::create(room.whole, what));
    }
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
    a.by_logits = router.weighs_input;
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

bool StepExperts::may_add_adapters(const DeviceExperts &weights, ExpertProduct place) const {
    const bool packed = place == ExpertProduct::gate_up ? weights.gate_up_packing.has_value()
                                                        : weights.down_packing.has_value();
    const bool takes = weights.in_e4m3() ? element_ == DType::bf16 : element_ != DType::f32;
    return kernel_ == GroupedKernel::sm90 && takes && !packed;
}

// Where it must not depend on the ranks of adapters of other rows, down never does: gate and up then have limited ranks.
bool StepExperts::adds_adapters(const DeviceExperts &weights, const AdaptedExperts &adapted,
                                ExpertProduct place) const {
    const StepAdapters &adapters = adapted.adapters;
    const size_t product = adapters.model().of_experts(adapted.layer, place);
    const bool may = place == ExpertProduct::gate_up || !adapters.reproducible();
    return may && may_add_adapters(weights, place) &&
           adapters.most_ranks(product) <= kMostGroupedRanks;
}

// The product, and of what adapters add to it t.
Result<AdapterArguments>
StepExperts::run_adapted(GroupedArguments product, const std::optional<Packing> &packing,
                         const AdaptedExperts &adapted, ExpertProduct place, bool adds,
                         const Input &x, const int32_t *x_rows, int64_t rows, cudaStream_t stream) {
    const StepAdapters &adapters = adapted.adapters;
    const size_t number = adapters.model().of_experts(adapted.layer, place);
    const int64_t turns = rows * adapters.model().product(number).rows;
    AdapterWork work = adapters.work(adapted.wanted, adapted.input);
    work.tile_count = adapted_tile_count_.as<int32_t>();
    work.tiles = adapted_tiles_.as<AdapterTile>();
    work.rows = nullptr;
    work.few_count = nullptr;
    work.has_few = false;
    work.has_others = true;
    const Scaling scaling = x.scales != nullptr ? Scaling::turns : Scaling::none;
    ASSIGN_OR_RETURN(const AdapterArguments change,
                     adapters.shrink({number, x, scaling, turns, false, product.y, element_, 1,
                                      &work, x_rows, 0, 0, adds},
                                     adapted.input, stream));
    if (adds) {
        if (!change.whole) return error(BATCHLLM_ERROR_INTERNAL, "cuda backend: t is not whole");
        product.adapters = {tile_adapters_.as<TileAdapters>(), change.product, change.t,
                            change.t_stride, change.most_of_part};
    }
    RETURN_IF_CUDA(launch(product, packing, stream));
    return change;
}

// gate_up_ -> activated_, with its scales where it is in e4m3. change: of gate_up_, what adapters add before.
Status StepExperts::activate(const Experts &experts, const DeviceExperts &weights, int64_t rows,
                             const AdaptedExperts &adapted, const AdapterArguments &change,
                             cudaStream_t stream) {
    const FeedForward &expert = experts.each[0];
    const int64_t turns = rows * experts.router.chosen;
    const bool quantized = weights.in_e4m3();
    void *const whole = quantized ? whole_.data() : activated_.data();
    TurnActivation activation{element_, expert.activation, gate_up_.data(), whole,
                              turns,    expert.width};
    const ActivationArguments both{
        element_, expert.activation,           bool(expert.gate), gate_up_.data(), nullptr,
        whole,    static_cast<int32_t>(turns), expert.width};
    if (kernel_ == GroupedKernel::sm90 && takes_adapted_activation(change, both, false)) {
        RETURN_IF_CUDA(launch_adapted_activation(change, both, nullptr, sms_, stream));
        activation.left_out = in_adapted_tiles_.as<uint8_t>();
    } else {
        RETURN_IF_ERROR(adapted.adapters.expand(change, stream));
    }
    RETURN_IF_CUDA(launch_turn_activation(activation, sms_, stream));
    if (!quantized) return {};
    const RowScales scales{activated_scales_.as<float>(), 1, expert.width / kScaleBlock};
    return check_cuda(launch_quantize_rows({element_, whole, activated_.data(), scales,
                                            static_cast<int32_t>(turns), expert.width},
                                           stream),
                      "experts");
}

Status StepExperts::weigh(const Experts &experts, const DeviceExperts &weights, int64_t rows,
                          bool adapts, TurnInput *input, cudaStream_t stream) {
    WeighArguments a{};
    a.element = element_;
    a.tokens = static_cast<int32_t>(rows);
    a.chosen = experts.router.chosen;
    a.hidden = model_.hidden;
    a.turn_of = turn_of_.as<int32_t>();
    a.weights = weights_.as<float>();
    const Input x = input->x;
    if (weights.in_e4m3()) {
        a.groups = weights.gate_up_packing ? 1 : static_cast<int32_t>(scale_groups(a.hidden));
        a.bytes = x.data;
        a.scales = x.scales;
        a.bytes_out = made_.data();
        a.scales_out =
            reinterpret_cast<float *>(made_.data() + rows * a.chosen * int64_t{a.hidden});
        input->x = Input(a.bytes_out, a.scales_out);
        if (adapts) { // read before the product is written there
            a.x = input->whole;
            a.out = gate_up_.data();
        }
    } else {
        a.x = x.data;
        a.out = made_.data();
        input->x = Input(a.out);
    }
    input->whole = a.out;
    input->row_of = nullptr;
    return check_cuda(launch_weigh(a, stream), "experts");
}

Status StepExperts::products(const Experts &experts, const DeviceExperts &weights, const Input &x,
                             int64_t rows, const AdaptedExperts *adapted, Profile *profile,
                             cudaStream_t stream) {
    const FeedForward &expert = experts.each[0];
    const auto changes = [&](ExpertProduct place) {
        return adapted != nullptr && adapted->adapters.changes(adapted->adapters.model().of_experts(
                                         adapted->layer, place));
    };
    const bool adapts_first = changes(ExpertProduct::gate_up);
    const bool adapts_last = changes(ExpertProduct::down);
    const bool adds_first =
        adapts_first && adds_adapters(weights, *adapted, ExpertProduct::gate_up);
    const bool adds_last = adapts_last && adds_adapters(weights, *adapted, ExpertProduct::down);
    if (adapts_first || adapts_last) {
        const AdaptedModel &model = adapted->adapters.model();
        const AdapterWork all = adapted->adapters.work(adapted->wanted, adapted->input);
        const AdaptedTurns turns{
            tiles_.as<ExpertTile>(),
            tile_count_.as<int32_t>(),
            token_of_.as<int32_t>(),
            all.entries,
            static_cast<int32_t>(model.of_experts(adapted->layer, ExpertProduct::gate_up)),
            static_cast<int32_t>(kExpertProducts),
            all.tall,
            adapted_tiles_.as<AdapterTile>(),
            adapted_tile_count_.as<int32_t>(),
            in_adapted_tiles_.as<uint8_t>(),
            adds_first || adds_last ? tile_adapters_.as<TileAdapters>() : nullptr};
        RETURN_IF_CUDA(launch_adapted_turns(turns, sms_, stream));
    }
    TurnInput input{x, adapted != nullptr ? adapted->whole.data : nullptr, token_of_.as<int32_t>()};
    if (experts.router.weighs_input) {
        RETURN_IF_ERROR(weigh(experts, weights, rows, adapts_first, &input, stream));
        RETURN_IF_ERROR(profile->mark(Part::routing, stream));
    }
    GroupedArguments a{};
    a.element = weights.in_e4m3() ? DType::e4m3 : element_;
    a.tiles = tiles_.as<ExpertTile>();
    a.tile_count = tile_count_.as<int32_t>();
    a.x = input.x.data;
    a.row_of = input.row_of;
    a.w = weights.gate_up;
    a.bias = weights.gate_up_bias;
    a.gated = bool(expert.gate);
    a.rows = (a.gated ? 2 : 1) * expert.width;
    a.columns = model_.hidden;
    a.activation = expert.activation;
    a.squared = !a.gated; // supported.cc has seen that it is this activation
    a.y = activated_.data();
    a.scales = {weights.gate_up_scaling, input.x.scales, weights.gate_up_scales,
                activated_scales_.as<float>(), element_};
    // By the product itself, or before the activation, which is a launch of its own then.
    if (adds_first) {
        RETURN_IF_ERROR(run_adapted(a, weights.gate_up_packing, *adapted, ExpertProduct::gate_up,
                                    true, Input(input.whole), input.row_of, rows, stream)
                            .status());
        RETURN_IF_ERROR(profile->mark(Part::gate_up, stream));
    } else if (adapts_first) {
        a.gated = a.squared = false;
        a.y = gate_up_.data();
        ASSIGN_OR_RETURN(const AdapterArguments change,
                         run_adapted(a, weights.gate_up_packing, *adapted, ExpertProduct::gate_up,
                                     false, Input(input.whole), input.row_of, rows, stream));
        RETURN_IF_ERROR(profile->mark(Part::gate_up, stream));
        RETURN_IF_ERROR(activate(experts, weights, rows, *adapted, change, stream));
        RETURN_IF_ERROR(profile->mark(Part::activation, stream));
    } else {
        RETURN_IF_CUDA(launch(a, weights.gate_up_packing, stream));
        RETURN_IF_ERROR(profile->mark(Part::gate_up, stream));
    }
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
    if (adapts_last) {
        const bool apart = adapts_first && !adds_first; // the activation
        Input activated(activated_.data());
        if (weights.in_e4m3()) activated = apart ? Input(whole_.data()) : Input(a.x, a.scales.x);
        ASSIGN_OR_RETURN(const AdapterArguments change,
                         run_adapted(a, weights.down_packing, *adapted, ExpertProduct::down,
                                     adds_last, activated, nullptr, rows, stream));
        if (!adds_last) RETURN_IF_ERROR(adapted->adapters.expand(change, stream));
    } else {
        RETURN_IF_CUDA(launch(a, weights.down_packing, stream));
    }
    return profile->mark(Part::down, stream);
}

Status StepExperts::run(const Layer &layer, const DeviceExperts &weights, const Input &x,
                        std::span<const AddNormArguments> ends, const AdaptedExperts *adapted,
                        Profile *profile, cudaStream_t stream, const CombineNorms &norms) {
    const Experts &experts = *layer.experts();
    const SharedExperts *both = layer.shared();
    int32_t count = 0;
    for (const AddNormArguments &end : ends) count += end.count;
    const RoutingArguments routed = routing(experts, weights, count);
    RETURN_IF_CUDA(launch_routing(routed, stream));
    RETURN_IF_ERROR(profile->mark(Part::routing, stream));
    RETURN_IF_ERROR(products(experts, weights, x, count, adapted, profile, stream));
    const bool gated = both != nullptr && both->gate;
    int64_t begin = 0;
    for (const AddNormArguments &end : ends) {
        CombineArguments sum{end,
                             made_.data(),
                             routed.turn_of + begin * routed.chosen,
                             routed.weights + begin * routed.chosen,
                             gated ? logits() + routed.experts + begin * routed.stride : nullptr,
                             routed.stride,
                             routed.chosen,
                             norms};
        if (both == nullptr) sum.add.delta = nullptr;
        RETURN_IF_CUDA(launch_combine(sum, stream));
        begin += end.count;
    }
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
