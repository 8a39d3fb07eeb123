#include "step/states.h"

#include <cstdint>

#include "base/visit.h"
#include "elementwise/elementwise.h"
#include "recurrent/channel_delta.h"
#include "recurrent/short_convolution.h"

namespace batchllm::cuda {
namespace {

constexpr int64_t kAlign = 256;
// From this many tokens on, chunks take less time than going token by token.
constexpr int32_t kChunkedTokens = 16;

} // namespace

StepStates::StepStates(const Model &model, const StepStateOptions &options)
    : model_(model), options_(options) {
    chunked_ = goes_in_chunks(model, options_.element, options_.reproducible);
    for (const Layer &layer : model_.layers) {
        begin_.push_back(slot_bytes_);
        const int64_t bytes = std::visit(
            Visitor{[](const NoMixer &) { return int64_t{0}; },
                    [](const Attention &) { return int64_t{0}; },
                    [&](const LinearAttention &linear) {
                        return linear.matrices_size() * dtype_bytes(options_.state) +
                               kRing * linear.channels() * dtype_bytes(options_.element);
                    },
                    [](const ShortConvolution &convolution) {
                        return convolution.state_size() * static_cast<int64_t>(sizeof(float));
                    }},
            layer.mixer);
        slot_bytes_ += (bytes + kAlign - 1) / kAlign * kAlign;
    }
}

Status StepStates::take_slots(int64_t slots) {
    // What was never written is never read.
    ASSIGN_OR_RETURN(slots_, DeviceMemory::create(slots * slot_bytes_, "the state slots"));
    return {};
}

Status StepStates::allocate(const StepBuffers &buffers, StepInput *input) {
    if (slot_bytes_ == 0) return {};
    static_assert(sizeof(StateItem) == state_item_bytes && sizeof(StateLevel) == state_level_bytes);
    RETURN_IF_ERROR(input->make(kStateItems, buffers[StepBuffer::state_items]));
    RETURN_IF_ERROR(input->make(kStateLevels, buffers[StepBuffer::state_levels]));
    const char *what = "activations";
    ASSIGN_OR_RETURN(of_gates_, zeroed_memory(buffers[StepBuffer::gate_inputs], what));
    ASSIGN_OR_RETURN(a_, zeroed_memory(buffers[StepBuffer::channel_decays], what));
    ASSIGN_OR_RETURN(z_, zeroed_memory(buffers[StepBuffer::channel_gates], what));
    if (!chunked_) return {};
    static_assert(sizeof(StateChunk) == state_chunk_bytes && kStateChunk == state_chunk_tokens);
    ASSIGN_OR_RETURN(mixed_, DeviceMemory::create(buffers[StepBuffer::delta_mixed], what));
    ASSIGN_OR_RETURN(w_, DeviceMemory::create(buffers[StepBuffer::delta_keys], what));
    ASSIGN_OR_RETURN(p_, DeviceMemory::create(buffers[StepBuffer::delta_weights], what));
    ASSIGN_OR_RETURN(gates_, DeviceMemory::create(buffers[StepBuffer::delta_gates], what));
    return input->make(kStateChunks, buffers[StepBuffer::state_chunks]);
}

// ---- Host ----

Status StepStates::stage(const TokenBatch &batch, StepInput *input, Staging *staging) {
    if (slot_bytes_ == 0) return {};
    list_state_items(batch, chunked_ ? kChunkedTokens : INT32_MAX, &items_);
    form_.clear();
    for (const StateLevel &level : items_.levels) {
        form_.push_back(static_cast<uint8_t>((level.several > level.begin ? kOne : 0) |
                                             (level.chunked > level.several ? kFew : 0) |
                                             (level.end > level.chunked ? kChunked : 0)));
    }
    RETURN_IF_ERROR(input->stage<StateItem>(kStateItems, items_.items, staging));
    RETURN_IF_ERROR(input->stage<StateChunk>(kStateChunks, items_.chunks, staging));
    return input->stage<StateLevel>(kStateLevels, items_.levels, staging);
}

// ---- Device ----

DeltaArguments StepStates::delta_arguments(const LinearAttention &linear,
                                           const DeviceLayer &weights, const Launch &at) const {
    const auto &own = std::get<DeviceDelta>(weights.mixer);
    DeltaArguments a{};
    a.element = options_.element;
    a.state = options_.state;
    a.stride = weights.qkv.rows;
    a.convolution = own.convolution;
    a.decay = own.decay;
    a.step = own.step;
    a.norm = own.norm.weight;
    a.epsilon = own.norm.epsilon;
    a.states = slots_.data() + begin_[at.layer];
    a.slot_bytes = slot_bytes_;
    a.items = at.input.at<StateItem>(kStateItems);
    a.key_heads = linear.key_heads;
    a.value_heads = linear.value_heads;
    a.key_dim = linear.key_dim;
    a.value_dim = linear.value_dim;
    a.sms = options_.sms;
    a.sm90 = options_.sm90;
    a.projected = at.projected;
    a.out = at.out;
    // Not the number of items: a graph's next replay may have more of them, with the same number of tokens.
    a.most_items = static_cast<int32_t>(at.tokens);
    return a;
}

Status StepStates::launch_delta_net(DeltaArguments a, const Launch &at) const {
    const StepInput &input = at.input;
    const cudaStream_t stream = at.stream;
    // With reproducible results a token's bits do not depend on how many of its item's tokens are in the step.
    const bool decodes = !options_.reproducible && takes_delta_decode(a);
    for (size_t l = 0; l < form_.size(); ++l) {
        const StateLevel &level = items_.levels[l];
        a.level = input.at<StateLevel>(kStateLevels) + l;
        if (form_[l] & kChunked) {
            // Blocks go on to other chunks where a replay has more.
            const int32_t chunks = level.chunk_end - level.chunk_begin;
            const ChunkArguments c{a,
                                   input.at<StateChunk>(kStateChunks),
                                   chunks,
                                   level.end - level.chunked,
                                   at.tokens,
                                   mixed_.data(),
                                   gates_.as<float2>(),
                                   w_.data(),
                                   p_.data()};
            RETURN_IF_CUDA(launch_delta_chunks(c, stream));
        }
        if (decodes && (form_[l] & kOne)) {
            RETURN_IF_CUDA(launch_delta_decode(a, level.several - level.begin, stream));
        }
        if (form_[l] & (decodes ? kFew : kStepped)) {
            RETURN_IF_CUDA(launch_delta_steps(a, decodes, stream));
        }
        if (form_[l] & kSeveral) RETURN_IF_CUDA(launch_delta_rings(a, stream));
    }
    return {};
}

Status StepStates::launch_convolution(const ShortConvolution &convolution,
                                      const DeviceLayer &weights, const Launch &at) const {
    const auto &own = std::get<DeviceConvolution>(weights.mixer);
    const StepInput &input = at.input;
    ShortConvolutionArguments a{};
    a.element = options_.element;
    a.projected = at.projected;
    a.stride = weights.qkv.rows;
    a.filter = own.filter;
    a.filter_bias = own.bias;
    a.input_bias = weights.qkv_bias;
    a.states = slots_.data() + begin_[at.layer];
    a.slot_bytes = slot_bytes_;
    a.out = at.out;
    a.items = input.at<StateItem>(kStateItems);
    a.chunks = chunked_ ? input.at<StateChunk>(kStateChunks) : nullptr;
    a.tokens = at.tokens;
    a.channels = static_cast<int32_t>(convolution.channels());
    a.width = convolution.width;
    a.sms = options_.sms;
    for (size_t l = 0; l < form_.size(); ++l) {
        a.level = input.at<StateLevel>(kStateLevels) + l;
        RETURN_IF_CUDA(launch_short_convolution(a, at.stream));
    }
    return {};
}

Status StepStates::launch(size_t layer, const DeviceLayer &weights, const void *projected,
                          void *out, float *squares, int64_t tokens, const StepInput &input,
                          cudaStream_t stream) const {
    const Launch at{layer, projected, out, squares, tokens, input, stream};
    return std::visit(
        Visitor{[](const NoMixer &) { return Status(); },
                [](const Attention &) { return Status(); },
                [&](const DeltaNet &net) {
                    return launch_delta_net(delta_arguments(net, weights, at), at);
                },
                [&](const ChannelDeltaNet &net) { return launch_channel_net(net, weights, at); },
                [&](const Mamba2 &mamba) { return launch_state_space(mamba, weights, at); },
                [&](const ShortConvolution &convolution) {
                    return launch_convolution(convolution, weights, at);
                }},
        model_.layers[layer].mixer);
}

Status StepStates::launch_channel_net(const ChannelDeltaNet &net, const DeviceLayer &weights,
                                      const Launch &at) const {
    const StepInput &input = at.input;
    ChannelDeltaArguments c{delta_arguments(net, weights, at),
                            static_cast<int32_t>(net.channels()) + net.gate_rank, a_.data(),
                            z_.data(), 0};
    for (size_t l = 0; l < form_.size(); ++l) {
        c.delta.level = input.at<StateLevel>(kStateLevels) + l;
        c.items = items_.levels[l].end - items_.levels[l].begin;
        RETURN_IF_CUDA(launch_channel_delta(c, at.stream));
        if (form_[l] & kSeveral) RETURN_IF_CUDA(launch_delta_rings(c.delta, at.stream));
    }
    return {};
}

Status StepStates::launch_state_space(const Mamba2 &mamba, const DeviceLayer &weights,
                                      const Launch &at) const {
    const auto &own = std::get<DeviceDelta>(weights.mixer);
    const StepInput &input = at.input;
    const cudaStream_t stream = at.stream;
    StateSpaceArguments s{delta_arguments(mamba, weights, at),
                          own.bias,
                          own.skip,
                          mamba.least_step,
                          mamba.most_step,
                          mamba.norm ? mamba.norm_parts : 1,
                          mamba.norm && mamba.norm_first,
                          0};
    for (size_t l = 0; l < form_.size(); ++l) {
        s.delta.level = input.at<StateLevel>(kStateLevels) + l;
        const StateLevel &level = items_.levels[l];
        s.stepped = level.chunked - level.begin;
        if (form_[l] & kChunked) {
            const StateSpaceChunks c{s,
                                     input.at<StateChunk>(kStateChunks),
                                     level.chunk_end - level.chunk_begin,
                                     level.end - level.chunked,
                                     mixed_.data(),
                                     gates_.as<float2>()};
            RETURN_IF_CUDA(launch_state_space_chunks(c, stream));
        }
        if (form_[l] & kStepped) RETURN_IF_CUDA(launch_state_space_steps(s, stream));
        if (form_[l] & kSeveral) RETURN_IF_CUDA(launch_delta_rings(s.delta, stream));
    }
    if (!mamba.norm) return {};
    SharedNorm shared;
    if (mamba.norm_ranks > 1) {
        ASSIGN_OR_RETURN(shared, share_squares(mamba, at));
    }
    RETURN_IF_CUDA(launch_state_space_norm(s, shared, at.tokens, stream));
    return {};
}

// A column for each norm, of those of this rank's norm alone until the sum is made.
Result<SharedNorm> StepStates::share_squares(const Mamba2 &mamba, const Launch &at) const {
    const DeviceRank &rank = options_.rank;
    const int32_t norms = rank.ranks() / mamba.norm_ranks, own = rank.number / mamba.norm_ranks;
    const auto values = static_cast<int32_t>(mamba.values_size());
    const int64_t count = at.tokens * norms;
    RETURN_IF_CUDA(
        cudaMemsetAsync(at.squares, 0, static_cast<size_t>(count) * sizeof(float), at.stream));
    RETURN_IF_CUDA(
        launch_row_squares({options_.element, at.out, values, static_cast<int32_t>(at.tokens),
                            values, at.squares + own, norms},
                           at.stream));
    RETURN_IF_ERROR(rank.sum(at.squares, count, DType::f32, at.stream));
    return SharedNorm{at.squares + own, norms, mamba.norm_ranks};
}

} // namespace batchllm::cuda
