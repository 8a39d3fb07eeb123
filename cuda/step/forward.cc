#include "step/forward.h"

#include <algorithm>
#include <cstdint>

#include "elementwise/elementwise.h"
#include "elementwise/norm.h"
#include "elementwise/rope.h"
#include "step/supported.h"

namespace batchllm::cuda {

Result<std::unique_ptr<Forward>> Forward::create(const Model &model,
                                                 const ForwardOptions &options) {
    RETURN_IF_ERROR(check_supported(model));
    std::unique_ptr<Forward> forward(new Forward(model, options));
    RETURN_IF_ERROR(forward->load());
    RETURN_IF_ERROR(forward->allocate());
    if (options.reproducible) RETURN_IF_ERROR(forward->prepare_in_order());
    return forward;
}

// Buffers have the widths of the model's description; the matrices must have them too.
Status Forward::check_widths() const {
    for (size_t i = 0; i < weights_.layers.size(); ++i) {
        const DeviceLayer &w = weights_.layers[i];
        const Layer &layer = model_.layers[i];
        const int64_t width = layer.feed_forward.width;
        if (w.qkv.rows == first_rows(layer) && w.o.columns == last_columns(layer) &&
            w.gate_up.rows == (layer.feed_forward.gate ? 2 : 1) * width &&
            w.down.columns == width) {
            continue;
        }
        return error(BATCHLLM_ERROR_INTERNAL,
                     "cuda backend: layer %zu: its matrices are not as wide as its buffers", i);
    }
    if (weights_.head.rows == head_rows(model_)) return {};
    return error(BATCHLLM_ERROR_INTERNAL, "cuda backend: the head is not as wide as its logits");
}

Status Forward::allocate_activations(const StepBuffers &of) {
    // Rows beyond a batch are computed too, from whatever is here.
    const char *what = "activations", *scales = "scales";
    ASSIGN_OR_RETURN(residual_, zeroed_memory(of[StepBuffer::residual], "the residual stream"));
    ASSIGN_OR_RETURN(last_, zeroed_memory(of[StepBuffer::last], "the residual stream"));
    ASSIGN_OR_RETURN(normed_, zeroed_memory(of[StepBuffer::normed], what));
    ASSIGN_OR_RETURN(normed_whole_, zeroed_memory(of[StepBuffer::normed_whole], what));
    ASSIGN_OR_RETURN(qkv_, zeroed_memory(of[StepBuffer::first], what));
    ASSIGN_OR_RETURN(attended_, zeroed_memory(of[StepBuffer::attended], what));
    ASSIGN_OR_RETURN(delta_, zeroed_memory(of[StepBuffer::delta], what));
    ASSIGN_OR_RETURN(gate_up_, zeroed_memory(of[StepBuffer::gate_up], what));
    ASSIGN_OR_RETURN(activated_, zeroed_memory(of[StepBuffer::activated], what));
    ASSIGN_OR_RETURN(layer_inputs_, zeroed_memory(of[StepBuffer::layer_inputs], "layer inputs"));
    ASSIGN_OR_RETURN(normed_scales_, zeroed_memory(of[StepBuffer::normed_scales], scales));
    ASSIGN_OR_RETURN(attended_scales_, zeroed_memory(of[StepBuffer::attended_scales], scales));
    ASSIGN_OR_RETURN(activated_scales_, zeroed_memory(of[StepBuffer::activated_scales], scales));
    ASSIGN_OR_RETURN(logits_, zeroed_memory(of[StepBuffer::logits], "logits"));
    static_assert(sizeof(SampleResult) == sample_bytes);
    ASSIGN_OR_RETURN(samples_, zeroed_memory(of[StepBuffer::samples], "samples"));
    return {};
}

Status Forward::allocate() {
    RETURN_IF_ERROR(check_widths());
    const StepBuffers buffers = step_buffers(model_, form(), rows_);
    logits_rows_ = buffers.logits_rows;
    RETURN_IF_ERROR(allocate_activations(buffers));
    RETURN_IF_ERROR(allocate_ropes());
    RETURN_IF_ERROR(allocate_kv_scales());
    // What most steps need.
    for (const StepSection section : {kTokens, kPositions, kPages, kWanted}) {
        RETURN_IF_ERROR(input_.make(section, buffers[StepBuffer::sections] / 4));
    }
    // All that a step can need: a place in each KV group.
    RETURN_IF_ERROR(input_.make(kSlots, buffers[StepBuffer::slots]));
    RETURN_IF_ERROR(attention_.allocate(rows_, buffers, &input_));
    RETURN_IF_ERROR(states_.allocate(buffers, &input_));
    RETURN_IF_ERROR(experts_.allocate(buffers));
    // Nothing is in gate_up_ or logits_ when a product's algorithms are timed, but what it is to write.
    const DeviceMemory &scratch = gate_up_.bytes() > logits_.bytes() ? gate_up_ : logits_;
    if (options_.tune) linear_->set_scratch(scratch.data(), scratch.bytes());
    return {};
}

Status Forward::norm(const DeviceNorm &norm, Scaling scaling, void *residual, int64_t count,
                     cudaStream_t stream) {
    if (copies_nothing(norm, scaling)) return {};
    const auto rows = static_cast<int32_t>(count);
    const DType type = input_type(scaling);
    const RowScales scales = scales_of(normed_scales_, scaling, count);
    if (norm.is_plain_rms()) {
        const NormArguments arguments{type,
                                      options_.residual,
                                      residual,
                                      nullptr,
                                      norm.weight,
                                      norm.epsilon,
                                      normed_.data(),
                                      rows,
                                      model_.hidden,
                                      scales,
                                      whole_of(scaling)};
        RETURN_IF_CUDA(launch_rms_norm(arguments, stream));
    } else {
        const AddNormArguments arguments{
            type, options_.residual, residual, nullptr,       nullptr, {},     1,
            norm, normed_.data(),    rows,     model_.hidden, nullptr, scales, whole_of(scaling)};
        RETURN_IF_CUDA(launch_add_norm(arguments, stream));
    }
    return profile_.mark(Part::norm, stream);
}

Status Forward::finish(const Ending &e, void *residual, int64_t rows, cudaStream_t stream) {
    const auto count = static_cast<int32_t>(rows);
    if (!e.after && e.keep == nullptr && adds(e.w)) {
        RETURN_IF_ERROR(
            linear_->run(e.w, e.x, rows, residual, options_.residual, true, stream, e.scale));
        RETURN_IF_CUDA(
            launch_add_bias(options_.residual, residual, e.bias, count, model_.hidden, stream));
        RETURN_IF_ERROR(profile_.mark(e.part, stream));
        return e.next != nullptr ? norm(*e.next, e.next_scaling, residual, rows, stream) : Status();
    }
    RETURN_IF_ERROR(linear_->run(e.w, e.x, rows, delta_.data(), options_.residual, false, stream));
    RETURN_IF_ERROR(profile_.mark(e.part, stream));
    RETURN_IF_CUDA(launch_add_norm(addition(e, residual, rows), stream));
    return profile_.mark(Part::norm, stream);
}

AddNormArguments Forward::addition(const Ending &e, void *residual, int64_t rows) const {
    const bool writes = e.next != nullptr && !copies_nothing(*e.next, e.next_scaling);
    return {input_type(e.next_scaling),
            options_.residual,
            residual,
            delta_.data(),
            e.bias,
            e.after,
            e.scale,
            writes ? *e.next : DeviceNorm{},
            writes ? normed_.data() : nullptr,
            static_cast<int32_t>(rows),
            model_.hidden,
            e.keep,
            scales_of(normed_scales_, e.next_scaling, rows),
            whole_of(e.next_scaling)};
}

Status Forward::launch(cudaStream_t stream) {
    const auto tokens = static_cast<int32_t>(tokens_);
    RETURN_IF_CUDA(launch_embed(options_.element, options_.residual, weights_.embedding,
                                input_.at<int32_t>(kTokens), samples(), tokens, model_.hidden,
                                model_.embedding_scale, residual_.data(), stream));
    for (size_t i = 0; i < ropes_.size(); ++i) {
        RETURN_IF_CUDA(launch_rope_table(input_.at<int32_t>(kPositions),
                                         ropes_[i].frequencies.as<float>(), tokens,
                                         model_.ropes[i].dims() / 2, model_.ropes[i].scale,
                                         ropes_[i].angles.as<float2>(), stream));
    }
    if (model_.layer_inputs) RETURN_IF_ERROR(make_layer_inputs(stream));
    RETURN_IF_ERROR(profile_.mark(Part::input, stream));
    const DeviceLayer &first = weights_.layers[0];
    RETURN_IF_ERROR(
        norm(first_norm(first), first_scaling(first), residual_.data(), tokens_, stream));
    for (size_t i = 0; i < weights_.layers.size(); ++i) RETURN_IF_ERROR(layer(i, stream));
    return {};
}

AttentionTensors Forward::attention_tensors(size_t layer) const {
    const DeviceLayer &w = weights_.layers[layer];
    return {qkv_.data(), attended_.data(), kv_of(layer), w.sinks, w.k_scale, w.v_scale};
}

Status Forward::keys_and_values(size_t index, cudaStream_t stream) {
    const DeviceLayer &w = weights_.layers[index];
    const Attention &a = model_.layers[index].attention;
    const Input x = normed(w.before_attention, residual_.data(), w.qkv.scaling);
    RETURN_IF_ERROR(linear_->run(w.qkv, x, tokens_, qkv_.data(), options_.element, false, stream));
    RETURN_IF_ERROR(profile_.mark(Part::qkv, stream));
    const bool turns = a.rope >= 0;
    const auto rope = static_cast<size_t>(std::max(a.rope, 0));
    const RopeArguments arguments{options_.element,
                                  qkv_.data(),
                                  w.qkv_bias,
                                  w.q_norm,
                                  w.k_norm,
                                  a.norm_whole,
                                  w.v_norm,
                                  turns ? ropes_[rope].angles.as<float2>() : nullptr,
                                  turns ? model_.ropes[rope].dims() : 0,
                                  turns && model_.ropes[rope].pairs,
                                  slots_of(index),
                                  kv_of(index),
                                  static_cast<int32_t>(tokens_),
                                  a.heads,
                                  a.kv_layer < 0 ? a.kv_heads : 0,
                                  a.head_dim,
                                  padded_head_dim(a.head_dim),
                                  input_.at<int32_t>(kPositions),
                                  a.long_scale,
                                  a.long_period,
                                  a.gated ? a.heads : 0,
                                  options_.kv_e4m3,
                                  w.k_scale,
                                  w.v_scale};
    RETURN_IF_CUDA(launch_rope(arguments, stream));
    return profile_.mark(Part::rope, stream);
}

// Keys and values have been launched.
Status Forward::attend(size_t index, cudaStream_t stream) {
    const AttentionTensors tensors = attention_tensors(index);
    if (attention_.widens(index)) {
        RETURN_IF_ERROR(attention_.launch_widening(index, tensors, input_, stream));
        RETURN_IF_ERROR(graphs_.mark(stream));
    }
    RETURN_IF_ERROR(attention_.launch(index, tensors, input_, stream));
    RETURN_IF_ERROR(graphs_.mark(stream));
    const Attention &a = model_.layers[index].attention;
    if (a.gated) {
        const DeviceLayer &w = weights_.layers[index];
        const int64_t gates = w.qkv.rows - w.o.columns;
        const GateArguments arguments{options_.element,
                                      attended_.data(),
                                      qkv_.data() + gates * dtype_bytes(options_.element),
                                      w.qkv_bias == nullptr ? nullptr : w.qkv_bias + gates,
                                      w.qkv.rows,
                                      static_cast<int32_t>(tokens_),
                                      static_cast<int32_t>(w.o.columns)};
        RETURN_IF_CUDA(launch_gate(arguments, stream));
    }
    return profile_.mark(Part::attention, stream);
}

Status Forward::recurrent(size_t index, cudaStream_t stream) {
    const DeviceLayer &w = weights_.layers[index];
    const Input x = normed(w.before_attention, residual_.data(), w.qkv.scaling);
    RETURN_IF_ERROR(linear_->run(w.qkv, x, tokens_, qkv_.data(), options_.element, false, stream));
    RETURN_IF_ERROR(profile_.mark(Part::qkv, stream));
    RETURN_IF_ERROR(
        states_.launch(index, w, qkv_.data(), attended_.data(), tokens_, input_, stream));
    return profile_.mark(model_.layers[index].convolution ? Part::convolution : Part::delta,
                         stream);
}

Status Forward::output(size_t index, const int32_t *wanted, void *residual, int64_t rows,
                       cudaStream_t stream) {
    const DeviceLayer &w = weights_.layers[index];
    const Layer &described = model_.layers[index];
    ASSIGN_OR_RETURN(const Input x, attended(w.o, wanted, rows, stream));
    if (wanted != nullptr && described.parallel) { // the feed-forward's input, now of these rows
        RETURN_IF_ERROR(
            norm(w.before_attention, scaling_of_feed_forward(w), residual, rows, stream));
    }
    const bool ends = !described.feeds(); // the layer
    const DeviceNorm *next = ends                 ? &norm_after(index)
                             : described.parallel ? nullptr
                                                  : &w.before_feed_forward;
    const Ending ending{w.o,
                        x,
                        w.o_bias,
                        w.after_attention,
                        described.residual_scale,
                        next,
                        ends ? scaling_after(index) : scaling_of_feed_forward(w),
                        Part::output};
    return finish(ending, residual, rows, stream);
}

// The first norm has been launched; so has the next layer's, or the last one, when this returns.
Status Forward::layer(size_t index, cudaStream_t stream) {
    const DeviceLayer &w = weights_.layers[index];
    const Layer &described = model_.layers[index];
    const bool mixes = described.mixes();
    if (mixes) {
        RETURN_IF_ERROR(described.attends() ? keys_and_values(index, stream)
                                            : recurrent(index, stream));
    }
    const bool last = index + 1 == weights_.layers.size();
    if (last && wanted_ == 0) return {};
    if (described.attends()) RETURN_IF_ERROR(attend(index, stream));

    void *residual = residual_.data();
    const int32_t *wanted = nullptr;
    int64_t rows = tokens_;
    if (last && gather_) {
        wanted = input_.at<int32_t>(kWanted);
        rows = wanted_;
        RETURN_IF_CUDA(launch_gather(residual_.data(), wanted, last_.data(),
                                     static_cast<int32_t>(rows),
                                     model_.hidden * dtype_bytes(options_.residual), stream));
        residual = last_.data();
    }
    if (mixes) {
        RETURN_IF_ERROR(output(index, wanted, residual, rows, stream));
    } else if (wanted != nullptr) { // the feed-forward's input, now of these rows
        RETURN_IF_ERROR(norm(first_norm(w), first_scaling(w), residual, rows, stream));
    }
    return described.feeds() ? feed_forward(index, residual, rows, stream) : Status();
}

Status Forward::sum_hidden(const SumSpan *spans, int32_t count, float *sums, cudaStream_t stream) {
    const DeviceMemory &residual = gather_ ? last_ : residual_;
    // Without a last norm the residual stream itself, whose type is the element's then.
    RETURN_IF_CUDA(launch_sum_rows(options_.element,
                                   normed(weights_.final_norm, residual.data(), Scaling::none).data,
                                   spans, sums, count, model_.hidden, stream));
    return profile_.mark(Part::sample, stream);
}

Status Forward::compute_logits(int64_t first, int64_t count, cudaStream_t stream) {
    const DeviceMemory &residual = gather_ ? last_ : residual_;
    const auto *x = static_cast<const std::byte *>(
        normed(weights_.final_norm, residual.data(), Scaling::none).data);
    RETURN_IF_ERROR(linear_->run(weights_.head,
                                 x + first * model_.hidden * dtype_bytes(options_.element), count,
                                 logits_.data(), DType::f32, false, stream, model_.logits_scale));
    RETURN_IF_CUDA(launch_finish_logits(logits(), count, logits_stride(), weights_.head_bias,
                                        model_.logits_softcap, stream));
    return profile_.mark(Part::logits, stream);
}

} // namespace batchllm::cuda
