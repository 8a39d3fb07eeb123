#include "step/feeds.h"

#include <span>
#include <variant>
#include <vector>

#include "backend/gpu/gated_product.h"
#include "base/visit.h"
#include "elementwise/elementwise.h"
#include "elementwise/layer_inputs.h"
#include "elementwise/quantize.h"
#include "gated/adapted_activation.h"
#include "gated/gated.h"
#include "step/adapted_product.h"

namespace batchllm::cuda {
namespace {

constexpr DeviceNorm kNoNorm;

} // namespace

// In reproducible steps products are cuBLASLt's alone, whatever the number of rows is. What is in e4m3 is faster with two
// launches (docs/lab/engine.md).
bool Feeds::in_one_product(const DeviceLayer &w, const FeedForward &f, int64_t rows,
                           const AdapterArguments *adapters) const {
    return parts_.options.has_gated_products() &&
           (adapters == nullptr || takes_gated_adapters(*adapters)) && rows >= least_gated_tokens &&
           w.gate_up.scaling == Scaling::none && w.down.scaling == Scaling::none &&
           takes_gated(parts_.element(), f);
}

// Activations::activated = activation(gate(x)) * up(x)
Status Feeds::activate(size_t index, const FeedForward &f, const Input &x, const StepRows &of,
                       cudaStream_t stream) {
    const DeviceLayer &w = parts_.layer(index);
    const int64_t rows = of.count;
    const Activations &buffers = parts_.activations;
    const ProductPlace place{index, LayerProduct::gate_up};
    const bool adapted = parts_.adapters.changes(place.number());
    Matrix gate_up = w.gate_up;
    Input rows_of_x = x;
    if (gate_up.packing && gate_up.packing->turns) {
        const StepProduct packed{
            w.gate_up, x, buffers.activated.data(), parts_.element(), false, 1, f.activation};
        // Adapters are added before the activation, to what is expanded.
        auto way = Products::Way::expanded;
        if (!adapted) {
            ASSIGN_OR_RETURN(way, products_.way_of(packed, rows, stream));
        }
        if (way == Products::Way::packed) {
            RETURN_IF_ERROR(products_.run(packed, rows, stream));
            return parts_.profile.mark(Part::gate_up, stream);
        }
        ASSIGN_OR_RETURN(const Products::Operands own,
                         products_.unpack(w.gate_up, x, rows, way, stream));
        gate_up = own.w;
        rows_of_x = own.x;
    }
    void *const gate_and_up = buffers.gate_up.data();
    const bool wanted = of.wanted != nullptr;
    const StepAdapters::Addition addition{place.number(), x,           gate_up.scaling,  rows,
                                          wanted,         gate_and_up, parts_.element(), 1};
    AdapterArguments adapters;
    if (adapted) adapters = parts_.adapters.arguments(addition, parts_.input);
    const AdapterArguments *const changes = adapted ? &adapters : nullptr;
    if (!gate_up.packing && gate_up.scaling == Scaling::none &&
        in_one_product(w, f, rows, changes)) {
        if (adapted)
            RETURN_IF_ERROR(parts_.adapters.shrink(addition, parts_.input, stream).status());
        const GatedArguments product{parts_.element(),
                                     f.activation,
                                     rows_of_x.data,
                                     gate_up.data,
                                     buffers.activated.data(),
                                     static_cast<int32_t>(rows),
                                     static_cast<int32_t>(gate_up.columns),
                                     f.width,
                                     changes};
        RETURN_IF_CUDA(launch_gated_sm90(product, parts_.options.attention.sms, stream));
        return parts_.profile.mark(Part::gate_up, stream);
    }
    const StepProduct product{gate_up, rows_of_x, gate_and_up, parts_.element(), false};
    ActivationArguments activation{parts_.element(),
                                   f.activation,
                                   bool(f.gate),
                                   gate_and_up,
                                   w.gate_up_bias,
                                   buffers.activated.data(),
                                   static_cast<int32_t>(rows),
                                   f.width,
                                   w.curve};
    const bool in_e4m3 = w.down.scaling != Scaling::none;
    const RowScales scales =
        residual_.scales_of(buffers.activated_scales.as<float>(), w.down.scaling, rows);
    if (adapted && adapters.work.has_others && parts_.options.has_gated_products() &&
        w.down.scaling != Scaling::blocks &&
        takes_adapted_activation(adapters, activation, in_e4m3)) {
        RETURN_IF_ERROR(parts_.adapters.shrink(addition, parts_.input, stream).status());
        RETURN_IF_ERROR(products_.run(product, rows, stream));
        RETURN_IF_ERROR(parts_.profile.mark(Part::gate_up, stream));
        RETURN_IF_CUDA(launch_adapted_activation(adapters, activation,
                                                 in_e4m3 ? scales.data : nullptr,
                                                 parts_.options.attention.sms, stream));
        if (parts_.adapters.all_in_others(wanted)) {
            return parts_.profile.mark(Part::activation, stream);
        }
        AdapterArguments few = adapters;
        few.work.has_others = false;
        if (few.work.has_few) RETURN_IF_ERROR(parts_.adapters.expand(few, stream));
        activation.left_out = adapters.work.in_others;
    } else {
        RETURN_IF_ERROR(run_adapted(parts_, &products_, product, place, rows, wanted, stream, &x));
        RETURN_IF_ERROR(parts_.profile.mark(Part::gate_up, stream));
    }
    RETURN_IF_CUDA(in_e4m3 ? launch_activation_e4m3(activation, scales, stream)
                           : launch_activation(activation, stream));
    return parts_.profile.mark(Part::activation, stream);
}

// Into Activations::delta.
Status Feeds::shared_expert(size_t index, const FeedForward &f, const Input &x,
                            const StepRows &rows, cudaStream_t stream) {
    const DeviceLayer &w = parts_.layer(index);
    const DType type = parts_.options.residual;
    const int32_t hidden = parts_.model.hidden;
    const auto count = static_cast<int32_t>(rows.count);
    void *delta = parts_.activations.delta.data();
    RETURN_IF_ERROR(activate(index, f, x, rows, stream));
    const Input activated(parts_.activations.activated.data());
    RETURN_IF_ERROR(run_adapted(parts_, &products_, {w.down, activated, delta, type, false},
                                {index, LayerProduct::down}, rows.count, rows.wanted != nullptr,
                                stream));
    RETURN_IF_CUDA(launch_add_bias(type, delta, w.down_bias, count, hidden, stream));
    RETURN_IF_ERROR(parts_.profile.mark(Part::down, stream));
    // Else ranks add it up with what the experts make.
    if (w.experts.after) RETURN_IF_ERROR(residual_.sum(delta, rows, stream));
    if (!w.after_shared || (w.experts.after && !parts_.options.rank)) return {};
    const AddNormArguments in_place{type, type,           delta, nullptr, nullptr, {},
                                    1,    w.after_shared, delta, count,   hidden};
    RETURN_IF_CUDA(launch_add_norm(in_place, stream));
    return parts_.profile.mark(Part::norm, stream);
}

// The logits of the layer's router.
Status Feeds::route(size_t index, const Experts &experts, const Input &x, const StepRows &rows,
                    cudaStream_t stream) {
    RETURN_IF_ERROR(run_adapted(parts_, &products_,
                                {parts_.layer(index).experts.router, x, parts_.experts.logits(),
                                 DType::f32, false, experts.router.logits_scale},
                                {index, LayerProduct::router}, rows.count, rows.wanted != nullptr,
                                stream));
    return parts_.profile.mark(Part::routing, stream);
}

// The shared expert into Activations::delta, then the experts, and what ends the layer. All of its matrices are of the
// compute type, or the experts' alone are in e4m3. Where router and experts have norms of their own, and what ended the
// mixer has not made them, Activations::normed has the input of each in turn. Where a norm stands after the experts, ranks
// add their sum to the delta first. They add up what they have made before anything else is done with it.
Status Feeds::experts(size_t index, const Experts &experts, const SharedExperts *both,
                      const StepRows &rows, cudaStream_t stream) {
    const DeviceLayer &w = parts_.layer(index);
    const Layer &described = parts_.model.layers[index];
    const bool apart = bool(w.experts.before);
    Input of_experts = residual_.normed(norm_before(index), scaling_of_feed(w), rows);
    const Input x =
        w.experts.in_e4m3() ? Input(parts_.activations.normed_whole.data()) : of_experts;
    if (!apart) RETURN_IF_ERROR(route(index, experts, x, rows, stream));
    if (both != nullptr) RETURN_IF_ERROR(shared_expert(index, both->shared, x, rows, stream));
    if (apart) {
        const bool made = residual_.makes_expert_inputs(index);
        const auto input = [&](const DeviceNorm &norm, bool of_router) -> Result<Input> {
            if (made) return residual_.expert_input(of_router, rows);
            RETURN_IF_ERROR(residual_.norm(norm, Scaling::none, rows, stream));
            return residual_.normed(norm, Scaling::none, rows);
        };
        ASSIGN_OR_RETURN(const Input of_router, input(w.experts.router_norm, true));
        RETURN_IF_ERROR(route(index, experts, of_router, rows, stream));
        ASSIGN_OR_RETURN(of_experts, input(w.experts.before, false));
    }
    const bool ends = !parts_.model.layer_inputs; // the layer
    const ResidualStream::First after = residual_.after(index);
    const DeviceNorm *next = ends ? &after.norm : &kNoNorm;
    const Scaling next_scaling = ends ? after.scaling : Scaling::none;
    const bool summed_apart = bool(w.experts.after);
    const bool ranks = bool(parts_.options.rank);
    // The launch that adds up the experts' results passes on no e4m3.
    const bool normed_apart = !ranks && next_scaling != Scaling::none;
    const ResidualStream::Ending ending{w.down,
                                        nullptr,
                                        nullptr,
                                        w.after_feed_forward,
                                        described.residual_scale,
                                        normed_apart ? nullptr : next,
                                        normed_apart ? Scaling::none : next_scaling,
                                        Part::combine,
                                        ends ? w.scalar : nullptr};
    AddNormArguments end = residual_.addition(ending, rows);
    const DType element = parts_.element(), type = parts_.options.residual;
    Profile *profile = &parts_.profile;
    const AdaptedExperts adapted{parts_.adapters, parts_.input, index, rows.wanted != nullptr,
                                 w.experts.in_e4m3() ? x : of_experts};
    const auto run = [&](std::span<const AddNormArguments> to, const CombineNorms &norms = {}) {
        return parts_.experts.run(described, w.experts, of_experts, to, &adapted, profile, stream,
                                  norms);
    };
    if (!ranks) {
        CombineNorms norms;
        if (summed_apart) norms = {w.after_shared, w.experts.after};
        RETURN_IF_ERROR(run({&end, 1}, norms));
        return normed_apart ? residual_.norm(*next, next_scaling, rows, stream) : Status();
    }
    void *delta = parts_.activations.delta.data();
    AddNormArguments sum{element,
                         type,
                         delta,
                         nullptr,
                         nullptr,
                         w.experts.after,
                         1,
                         {},
                         nullptr,
                         end.count,
                         parts_.model.hidden};
    AddNormArguments own = sum;
    own.after = {};
    own.fresh = true;
    if (!summed_apart) {
        std::vector<AddNormArguments> owners;
        for (const ResidualStream::Room &room : residual_.part_rooms(rows)) {
            own.residual = room.data;
            own.count = static_cast<int32_t>(room.count);
            own.delta = static_cast<std::byte *>(delta) +
                        room.begin * parts_.model.hidden * dtype_bytes(type);
            owners.push_back(own);
        }
        RETURN_IF_ERROR(run(owners));
        return residual_.add_up(nullptr, rows, end, stream);
    }
    own.residual = parts_.activations.second_delta();
    own.delta = nullptr;
    RETURN_IF_ERROR(run({&own, 1}));
    RETURN_IF_ERROR(residual_.sum(own.residual, rows, stream));
    sum.delta = own.residual;
    RETURN_IF_CUDA(launch_add_norm(sum, stream));
    RETURN_IF_CUDA(launch_add_norm(end, stream));
    return profile->mark(Part::norm, stream);
}

Status Feeds::dense(size_t index, const FeedForward &f, const StepRows &rows, cudaStream_t stream) {
    const DeviceLayer &w = parts_.layer(index);
    const Input x = residual_.normed(norm_before(index), w.gate_up.scaling, rows);
    RETURN_IF_ERROR(activate(index, f, x, rows, stream));
    const bool ends = !parts_.model.layer_inputs; // the layer
    const ResidualStream::First after = residual_.after(index);
    const Activations &buffers = parts_.activations;
    const ResidualStream::Ending ending{
        w.down,
        {buffers.activated.data(), buffers.activated_scales.as<float>()},
        w.down_bias,
        w.after_feed_forward,
        parts_.model.layers[index].residual_scale,
        ends ? &after.norm : &kNoNorm,
        ends ? after.scaling : Scaling::none,
        Part::down,
        ends ? w.scalar : nullptr,
        ProductPlace{index, LayerProduct::down},
        true};
    return residual_.finish(ending, rows, stream);
}

Status Feeds::run(size_t index, const StepRows &rows, cudaStream_t stream) {
    const Feed &feed = parts_.model.layers[index].feed;
    if (std::holds_alternative<NoFeed>(feed)) return {};
    RETURN_IF_ERROR(std::visit(
        Visitor{[](const NoFeed &) { return Status(); },
                [&](const FeedForward &f) { return dense(index, f, rows, stream); },
                [&](const Experts &alone) { return experts(index, alone, nullptr, rows, stream); },
                [&](const SharedExperts &both) {
                    return experts(index, both.experts, &both, rows, stream);
                }},
        feed));
    return parts_.model.layer_inputs ? add_layer_input(index, rows, stream) : Status();
}

Status Feeds::make_layer_inputs(cudaStream_t stream) {
    const LayerInputs &described = parts_.model.layer_inputs;
    if (!described) return {};
    const DeviceWeights &weights = parts_.weights;
    const StepRows rows = parts_.all_rows();
    void *out = parts_.activations.layer_inputs.data();
    RETURN_IF_ERROR(residual_.norm(kNoNorm, Scaling::none, rows, stream));
    RETURN_IF_ERROR(
        products_.run({weights.input_projection, residual_.normed(kNoNorm, Scaling::none, rows),
                       out, parts_.element(), false, described.projection_scale},
                      rows.count, stream));
    const LayerInputsArguments arguments{parts_.element(),
                                         out,
                                         weights.input_embedding,
                                         parts_.input.at<int32_t>(kTokens),
                                         parts_.samples(),
                                         weights.input_norm,
                                         described.embedding_scale,
                                         described.scale,
                                         static_cast<int32_t>(rows.count),
                                         static_cast<int32_t>(parts_.model.layers.size()),
                                         described.width};
    return check_cuda(launch_layer_inputs(arguments, stream), "layer inputs");
}

// The residual stream itself is the block's input.
Status Feeds::add_layer_input(size_t index, const StepRows &rows, cudaStream_t stream) {
    const DeviceLayer &w = parts_.layer(index);
    const Activations &buffers = parts_.activations;
    const int32_t width = parts_.model.layer_inputs.width;
    const int64_t element = dtype_bytes(parts_.element());
    const Input x = residual_.normed(kNoNorm, Scaling::none, rows);
    RETURN_IF_ERROR(products_.run(
        {w.input_gate, x, buffers.gate_up.data(), parts_.element(), false}, rows.count, stream));
    RETURN_IF_ERROR(parts_.profile.mark(Part::gate_up, stream));
    const LayerPartArguments part{parts_.element(),
                                  parts_.model.layers[index].input.activation,
                                  buffers.gate_up.data(),
                                  buffers.layer_inputs.data() +
                                      static_cast<int64_t>(index) * width * element,
                                  rows.wanted,
                                  buffers.activated.data(),
                                  parts_.weights.input_projection.rows,
                                  static_cast<int32_t>(rows.count),
                                  width};
    RETURN_IF_CUDA(launch_layer_part(part, stream));
    RETURN_IF_ERROR(parts_.profile.mark(Part::activation, stream));
    const ResidualStream::First after = residual_.after(index);
    const ResidualStream::Ending ending{w.input_down,
                                        buffers.activated.data(),
                                        nullptr,
                                        w.after_input,
                                        1,
                                        &after.norm,
                                        after.scaling,
                                        Part::down,
                                        w.scalar};
    return residual_.finish(ending, rows, stream);
}

} // namespace batchllm::cuda
