// A layer's feed-forward: its own, or its experts and the one they share; and its part of the layer inputs.
#include "elementwise/elementwise.h"
#include "elementwise/layer_inputs.h"
#include "elementwise/quantize.h"
#include "gated/gated.h"
#include "step/forward.h"

namespace batchllm::cuda {
namespace {

constexpr DeviceNorm kNoNorm;

} // namespace

// In reproducible steps products are cuBLASLt's alone, whatever the number of rows is. What is in e4m3 is faster with two
// launches (docs/lab/engine.md).
bool Forward::in_one_product(size_t index, int64_t rows) const {
    const DeviceLayer &w = weights_.layers[index];
    const FeedForward &f = model_.layers[index].feed_forward;
    return options_.has_gated_products() && rows >= least_gated_tokens &&
           w.gate_up.scaling == Scaling::none && w.down.scaling == Scaling::none &&
           takes_gated(options_.element, f);
}

// activated_ = activation(gate(x)) * up(x)
Status Forward::activate(size_t index, const Input &x, int64_t rows, cudaStream_t stream) {
    const DeviceLayer &w = weights_.layers[index];
    const FeedForward &f = model_.layers[index].feed_forward;
    if (in_one_product(index, rows)) {
        const GatedArguments product{options_.element,
                                     f.activation,
                                     x.data,
                                     w.gate_up.data,
                                     activated_.data(),
                                     static_cast<int32_t>(rows),
                                     static_cast<int32_t>(w.gate_up.columns),
                                     f.width};
        RETURN_IF_CUDA(launch_gated_sm90(product, options_.attention.sms, stream));
        return profile_.mark(Part::gate_up, stream);
    }
    RETURN_IF_ERROR(
        linear_->run(w.gate_up, x, rows, gate_up_.data(), options_.element, false, stream));
    RETURN_IF_ERROR(profile_.mark(Part::gate_up, stream));
    const ActivationArguments activation{options_.element,
                                         f.activation,
                                         bool(f.gate),
                                         gate_up_.data(),
                                         w.gate_up_bias,
                                         activated_.data(),
                                         static_cast<int32_t>(rows),
                                         f.width};
    if (w.down.scaling == Scaling::none) {
        RETURN_IF_CUDA(launch_activation(activation, stream));
    } else {
        const RowScales scales = scales_of(activated_scales_, w.down.scaling, rows);
        RETURN_IF_CUDA(launch_activation_e4m3(activation, scales, stream));
    }
    return profile_.mark(Part::activation, stream);
}

// Into delta_.
Status Forward::shared_expert(size_t index, const Input &x, int64_t rows, cudaStream_t stream) {
    const DeviceLayer &w = weights_.layers[index];
    const auto count = static_cast<int32_t>(rows);
    RETURN_IF_ERROR(activate(index, x, rows, stream));
    RETURN_IF_ERROR(linear_->run(w.down, activated_.data(), rows, delta_.data(), options_.residual,
                                 false, stream));
    RETURN_IF_CUDA(launch_add_bias(options_.residual, delta_.data(), w.down_bias, count,
                                   model_.hidden, stream));
    RETURN_IF_ERROR(profile_.mark(Part::down, stream));
    if (!w.after_shared) return {};
    const AddNormArguments in_place{
        options_.residual, options_.residual, delta_.data(), nullptr,      nullptr, {}, 1,
        w.after_shared,    delta_.data(),     count,         model_.hidden};
    RETURN_IF_CUDA(launch_add_norm(in_place, stream));
    return profile_.mark(Part::norm, stream);
}

// The logits of the layer's router.
Status Forward::route(size_t index, const Input &x, int64_t rows, cudaStream_t stream) {
    RETURN_IF_ERROR(linear_->run(weights_.layers[index].experts.router, x, rows, experts_.logits(),
                                 DType::f32, false, stream,
                                 model_.layers[index].experts.router.logits_scale));
    return profile_.mark(Part::routing, stream);
}

// The shared expert into delta_, then the experts, and what ends the layer. All of its matrices are of the
// compute type, or the experts' alone are in e4m3. Where router and experts have norms of their own, normed_ has
// the input of each in turn. Where a norm stands after the experts, their sum is added to delta_ first.
Status Forward::sparse_feed_forward(size_t index, void *residual, int64_t rows,
                                    cudaStream_t stream) {
    const DeviceLayer &w = weights_.layers[index];
    const Layer &described = model_.layers[index];
    const DeviceNorm &before = described.parallel ? w.before_attention : w.before_feed_forward;
    const bool apart = bool(w.experts.before);
    Input of_experts = normed(before, residual, scaling_of_feed_forward(w));
    const Input x = w.experts.in_e4m3() ? Input(normed_whole_.data()) : of_experts;
    if (!apart) RETURN_IF_ERROR(route(index, x, rows, stream));
    if (w.gate_up.rows > 0) RETURN_IF_ERROR(shared_expert(index, x, rows, stream));
    if (apart) {
        const DeviceNorm &of_router = w.experts.router_norm;
        RETURN_IF_ERROR(norm(of_router, Scaling::none, residual, rows, stream));
        RETURN_IF_ERROR(route(index, normed(of_router, residual, Scaling::none), rows, stream));
        RETURN_IF_ERROR(norm(w.experts.before, Scaling::none, residual, rows, stream));
        of_experts = normed(w.experts.before, residual, Scaling::none);
    }
    const bool ends = !model_.layer_inputs; // the layer
    const DeviceNorm *next = ends ? &norm_after(index) : &kNoNorm;
    const Scaling next_scaling = ends ? scaling_after(index) : Scaling::none;
    const bool summed_apart = bool(w.experts.after);
    // The launch that adds up the experts' results passes on no e4m3.
    const bool normed_apart = !summed_apart && next_scaling != Scaling::none;
    const Ending ending{w.down,
                        nullptr,
                        nullptr,
                        w.after_feed_forward,
                        described.residual_scale,
                        normed_apart ? nullptr : next,
                        normed_apart ? Scaling::none : next_scaling,
                        Part::combine,
                        ends ? w.scalar : nullptr};
    const AddNormArguments end = addition(ending, residual, rows);
    if (!summed_apart) {
        RETURN_IF_ERROR(experts_.run(described, w.experts, of_experts, end, &profile_, stream));
        return normed_apart ? norm(*next, next_scaling, residual, rows, stream) : Status();
    }
    const AddNormArguments sum{options_.element,
                               options_.residual,
                               delta_.data(),
                               nullptr,
                               nullptr,
                               w.experts.after,
                               1,
                               {},
                               nullptr,
                               end.count,
                               model_.hidden};
    RETURN_IF_ERROR(experts_.run(described, w.experts, of_experts, sum, &profile_, stream));
    RETURN_IF_CUDA(launch_add_norm(end, stream));
    return profile_.mark(Part::norm, stream);
}

Status Forward::feed_forward(size_t index, void *residual, int64_t rows, cudaStream_t stream) {
    const DeviceLayer &w = weights_.layers[index];
    const Layer &described = model_.layers[index];
    const DeviceNorm &before = described.parallel ? w.before_attention : w.before_feed_forward;
    const bool ends = !model_.layer_inputs; // the layer
    if (w.experts) {
        RETURN_IF_ERROR(sparse_feed_forward(index, residual, rows, stream));
        return ends ? Status() : add_layer_input(index, residual, rows, stream);
    }
    RETURN_IF_ERROR(activate(index, normed(before, residual, w.gate_up.scaling), rows, stream));
    const Ending ending{w.down,
                        {activated_.data(), activated_scales_.as<float>()},
                        w.down_bias,
                        w.after_feed_forward,
                        described.residual_scale,
                        ends ? &norm_after(index) : &kNoNorm,
                        ends ? scaling_after(index) : Scaling::none,
                        Part::down,
                        ends ? w.scalar : nullptr};
    RETURN_IF_ERROR(finish(ending, residual, rows, stream));
    return ends ? Status() : add_layer_input(index, residual, rows, stream);
}

// Of the residual stream before the first layer.
Status Forward::make_layer_inputs(cudaStream_t stream) {
    const LayerInputs &described = model_.layer_inputs;
    RETURN_IF_ERROR(norm(kNoNorm, Scaling::none, residual_.data(), tokens_, stream));
    RETURN_IF_ERROR(linear_->run(
        weights_.input_projection, normed(kNoNorm, residual_.data(), Scaling::none), tokens_,
        layer_inputs_.data(), options_.element, false, stream, described.projection_scale));
    const LayerInputsArguments arguments{options_.element,
                                         layer_inputs_.data(),
                                         weights_.input_embedding,
                                         input_.at<int32_t>(kTokens),
                                         samples(),
                                         weights_.input_norm,
                                         described.embedding_scale,
                                         described.scale,
                                         static_cast<int32_t>(tokens_),
                                         static_cast<int32_t>(model_.layers.size()),
                                         described.width};
    return check_cuda(launch_layer_inputs(arguments, stream), "layer inputs");
}

// The residual stream itself is the block's input.
Status Forward::add_layer_input(size_t index, void *residual, int64_t rows, cudaStream_t stream) {
    const DeviceLayer &w = weights_.layers[index];
    const int32_t width = model_.layer_inputs.width;
    const int64_t element = dtype_bytes(options_.element);
    const Input x = normed(kNoNorm, residual, Scaling::none);
    RETURN_IF_ERROR(
        linear_->run(w.input_gate, x, rows, gate_up_.data(), options_.element, false, stream));
    RETURN_IF_ERROR(profile_.mark(Part::gate_up, stream));
    const bool gathered = residual == last_.data();
    const LayerPartArguments part{options_.element,
                                  model_.layers[index].input.activation,
                                  gate_up_.data(),
                                  layer_inputs_.data() +
                                      static_cast<int64_t>(index) * width * element,
                                  gathered ? input_.at<int32_t>(kWanted) : nullptr,
                                  activated_.data(),
                                  weights_.input_projection.rows,
                                  static_cast<int32_t>(rows),
                                  width};
    RETURN_IF_CUDA(launch_layer_part(part, stream));
    RETURN_IF_ERROR(profile_.mark(Part::activation, stream));
    const Ending ending{w.input_down,       activated_.data(),    nullptr,    w.after_input, 1,
                        &norm_after(index), scaling_after(index), Part::down, w.scalar};
    return finish(ending, residual, rows, stream);
}

} // namespace batchllm::cuda
