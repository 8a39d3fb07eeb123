#include "step/parts.h"

#include "attention/worklist_by_position.h"
#include "backend/gpu/key_segments.h"
#include "elementwise/elementwise.h"
#include "elementwise/norm.h"
#include "step/residual.h"

namespace batchllm::cuda {
namespace {

constexpr bool has_key_segments() {
    for (int32_t begin = 0; begin < 1 << 29; begin = segment_end(begin)) {
        if (segment_end(begin) != key_segment_end(begin)) return false;
    }
    return true;
}
static_assert(has_key_segments());

// Buffers have the widths of the model's description; the matrices must have them too.
Status check_widths(const Model &model, const DeviceWeights &weights) {
    for (size_t i = 0; i < weights.layers.size(); ++i) {
        const DeviceLayer &w = weights.layers[i];
        const Layer &layer = model.layers[i];
        const FeedForward *dense = layer.feed_forward();
        const int64_t width = dense != nullptr ? dense->width : 0;
        const int64_t parts = dense != nullptr && dense->gate ? 2 : 1;
        if (w.qkv.rows == first_rows(layer.mixer) && w.o.columns == last_columns(layer.mixer) &&
            w.gate_up.rows == parts * width && w.down.columns == width) {
            continue;
        }
        return error(BATCHLLM_ERROR_INTERNAL,
                     "cuda backend: layer %zu: its matrices are not as wide as its buffers", i);
    }
    if (weights.head.rows == head_rows(model)) return {};
    return error(BATCHLLM_ERROR_INTERNAL, "cuda backend: the head is not as wide as its logits");
}

} // namespace

StepForm step_form(const Model &model, const ForwardOptions &options) {
    StepForm form;
    form.element = options.element;
    form.residual = options.residual;
    if (options.attention.reproducible) form.partials = reproducible_partials(model);
    form.plain_latents = is_sm90(options.attention.family);
    form.state_chunks = goes_in_chunks(model, options.element, options.reproducible);
    return form;
}

LoadOptions load_options(const Model &model, const ForwardOptions &options, size_t memory_bytes) {
    LoadOptions load;
    load.element = options.element;
    load.random = options.random_weights;
    load.skewed_routing = options.skewed_routing;
    load.seed = options.seed;
    load.threads = options.threads;
    load.quantize = options.quantize;
    int64_t elements = 0;
    for_each_tensor(model, [&](const Tensor &t) { elements += t.rows * t.columns; });
    load.rounds_in_steps =
        !options.reproducible &&
        static_cast<double>(elements) > options.most_in_e4m3 * static_cast<double>(memory_bytes);
    // In f32 nothing is rounded that need not be.
    load.experts_in_e4m3 = options.experts == GroupedKernel::sm90 && options.element != DType::f32;
    return load;
}

StepParts::StepParts(const Model &described, const ForwardOptions &chosen)
    : model(described), options(chosen), rows(padded_rows(chosen.step_tokens)),
      kv(described, chosen.kv_type()),
      attention(described, chosen.element, chosen.kv_type(), chosen.attention),
      states(described, {chosen.element, chosen.state, chosen.attention.sms, chosen.reproducible,
                         chosen.experts == GroupedKernel::sm90, chosen.rank}),
      experts(described, chosen.element, chosen.experts, chosen.attention.sms),
      adapters(described, chosen.element, chosen.attention.sms,
               chosen.experts == GroupedKernel::sm90, chosen.reproducible) {
    profile.on = options.profile;
    attention.set_page_scale(kv.page_scale());
}

Status StepParts::allocate(const StepForm &form) {
    RETURN_IF_ERROR(check_widths(model, weights));
    const StepBuffers buffers = step_buffers(model, form, rows);
    const DeviceRank &rank = options.rank;
    if (rank) {
        ASSIGN_OR_RETURN(peers,
                         rank.group->share_buffers(rank.number, {buffers[StepBuffer::shared] / 2,
                                                                 Activations::shared_bytes(buffers),
                                                                 buffers[StepBuffer::logits],
                                                                 form_of_rows(buffers)}));
    }
    RETURN_IF_ERROR(activations.allocate(buffers, peers != nullptr ? peers->more : nullptr,
                                         peers != nullptr ? peers->logits : nullptr));
    RETURN_IF_ERROR(ropes.allocate(model, rows));
    // Random weights are of such a size that keys and values need no scale.
    if (options.kv_e4m3 && !options.random_weights) {
        RETURN_IF_ERROR(kv.load_scales(options.threads));
    }
    // What most steps need.
    for (const StepSection section : {kTokens, kPositions, kPages, kWanted}) {
        RETURN_IF_ERROR(input.make(section, buffers[StepBuffer::sections] / 4));
    }
    // All that a step can need: a place in each KV group.
    RETURN_IF_ERROR(input.make(kSlots, buffers[StepBuffer::slots]));
    RETURN_IF_ERROR(attention.allocate(rows, buffers, &input));
    RETURN_IF_ERROR(states.allocate(buffers, &input));
    return experts.allocate(buffers);
}

bool StepParts::can_own_rows() const {
    const auto sliced = [](const Matrix &w) {
        return w.scaling == Scaling::none || w.scaling == Scaling::rows;
    };
    if (model.layer_inputs || !weights.final_norm) return false;
    for (const DeviceLayer &w : weights.layers) {
        const DeviceExperts &routed = w.experts;
        if (w.mixes() && (!w.before_attention || w.o_bias != nullptr || !sliced(w.o))) return false;
        if (routed && (routed.before || routed.after)) return false;
        const bool dense = !routed && w.down.rows > 0;
        if ((routed || dense) && !w.before_feed_forward) return false;
        if (dense && (w.down_bias != nullptr || !sliced(w.down))) return false;
    }
    return true;
}

std::vector<int64_t> StepParts::form_of_rows(const StepBuffers &buffers) const {
    if (!can_own_rows()) return {};
    std::vector<int64_t> form = {
        static_cast<int64_t>(options.element), static_cast<int64_t>(options.residual),
        buffers[StepBuffer::residual],         buffers[StepBuffer::normed],
        buffers[StepBuffer::normed_whole],     buffers[StepBuffer::normed_scales]};
    for (const DeviceLayer &w : weights.layers) {
        form.push_back(static_cast<int64_t>(w.qkv.scaling));
        form.push_back(static_cast<int64_t>(scaling_of_feed(w)));
    }
    return form;
}

Status StepParts::stage(const TokenBatch &batch, std::span<const int32_t> wanted,
                        int64_t sample_rows, Staging *staging) {
    const auto tokens = static_cast<int64_t>(batch.tokens.size());
    const auto wanted_tokens = static_cast<int64_t>(wanted.size());
    staged = {padded_rows(tokens), padded_rows(wanted_tokens), wanted_tokens < tokens, sample_rows,
              wanted_tokens};
    RETURN_IF_ERROR(input.stage<int32_t>(kTokens, batch.tokens, staged.tokens, 0, staging));
    RETURN_IF_ERROR(input.stage<int32_t>(kPositions, batch.positions, staged.tokens, 0, staging));
    RETURN_IF_ERROR(input.stage<int32_t>(kWanted, wanted, staged.wanted, 0, staging));
    RETURN_IF_ERROR(ropes.stage(batch, staged.tokens, &input, staging));
    RETURN_IF_ERROR(pictures.stage(batch, &input, staging));
    RETURN_IF_ERROR(kv.stage_slots(batch, staged.tokens, &input, staging));
    RETURN_IF_ERROR(states.stage(batch, &input, staging));
    RETURN_IF_ERROR(adapters.stage(batch, wanted, staged.tokens, staged.wanted, staged.gather,
                                   &input, staging));
    return attention.stage(batch, &input, staging);
}

Result<bool> StepParts::reserve(cudaStream_t stream) {
    ASSIGN_OR_RETURN(const bool input_moved, input.reserve(stream));
    ASSIGN_OR_RETURN(const bool samples_moved,
                     activations.reserve_samples(staged.sample_rows, stream));
    ASSIGN_OR_RETURN(const bool adapters_grown, adapters.reserve(rows, stream));
    if (adapters_grown && adapters.changes_experts()) {
        RETURN_IF_ERROR(experts.make_room_for_adapters(rows));
    }
    return input_moved || samples_moved || adapters_grown;
}

} // namespace batchllm::cuda
