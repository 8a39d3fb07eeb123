#include "step/delta.h"

#include <algorithm>
#include <cstdint>

#include "backend/state_levels.h"

namespace batchllm::cuda {
namespace {

constexpr int64_t kAlign = 256;
// From so many tokens on, products of matrices take less time than going token by token.
constexpr int32_t kChunkedTokens = 16;

} // namespace

bool goes_in_chunks(const Model &model, DType element, bool reproducible) {
    return !reproducible &&
           std::all_of(model.layers.begin(), model.layers.end(), [&](const Layer &layer) {
               const LinearAttention &of = layer.linear_attention;
               const auto takes =
                   of.rule == StateRule::delta ? takes_chunks : takes_state_space_chunks;
               return !of || takes(element, of.key_dim, of.value_dim);
           });
}

StepDelta::StepDelta(const Model &model, const DeltaOptions &options)
    : model_(model), options_(options) {
    chunked_ = goes_in_chunks(model, options_.element, options_.reproducible);
    for (const Layer &layer : model_.layers) {
        begin_.push_back(slot_bytes_);
        const LinearAttention &delta = layer.linear_attention;
        if (!delta) continue;
        const int64_t bytes = delta.values_size() * delta.key_dim * dtype_bytes(options_.state) +
                              kRing * delta.channels() * dtype_bytes(options_.element);
        slot_bytes_ += (bytes + kAlign - 1) / kAlign * kAlign;
    }
}

Status StepDelta::take_slots(int64_t slots) {
    // What was never written is never read.
    ASSIGN_OR_RETURN(slots_, DeviceMemory::create(slots * slot_bytes_, "the state slots"));
    return {};
}

Status StepDelta::allocate(const StepBuffers &buffers, StepInput *input) {
    if (slot_bytes_ == 0) return {};
    static_assert(sizeof(DeltaItem) == delta_item_bytes && sizeof(DeltaLevel) == delta_level_bytes);
    RETURN_IF_ERROR(input->make(kDeltaItems, buffers[StepBuffer::delta_items]));
    RETURN_IF_ERROR(input->make(kDeltaLevels, buffers[StepBuffer::delta_levels]));
    if (!chunked_) return {};
    static_assert(sizeof(DeltaChunk) == delta_chunk_bytes && kDeltaChunk == delta_chunk_tokens);
    const char *what = "activations";
    ASSIGN_OR_RETURN(mixed_, DeviceMemory::create(buffers[StepBuffer::delta_mixed], what));
    ASSIGN_OR_RETURN(w_, DeviceMemory::create(buffers[StepBuffer::delta_keys], what));
    ASSIGN_OR_RETURN(p_, DeviceMemory::create(buffers[StepBuffer::delta_weights], what));
    ASSIGN_OR_RETURN(gates_, DeviceMemory::create(buffers[StepBuffer::delta_gates], what));
    return input->make(kDeltaChunks, buffers[StepBuffer::delta_chunks]);
}

// ---- Host ----

void StepDelta::read_nodes(const TokenBatch &batch) {
    items_.clear();
    levels_.clear();
    chunks_.clear();
    form_.clear();
    const std::vector<int32_t> level_of = state_levels(batch);
    const int32_t most =
        level_of.empty() ? -1 : *std::max_element(level_of.begin(), level_of.end());
    for (int32_t l = 0; l <= most; ++l) {
        const auto begin = static_cast<int32_t>(items_.size());
        for (size_t n = 0; n < batch.nodes.size(); ++n) {
            if (level_of[n] != l) continue;
            const ContextNode &node = batch.nodes[n];
            items_.push_back({node.state, state_before(batch, node), node.token_begin,
                              node.token_count, node.start + node.length - node.token_count});
        }
        add_level(begin);
    }
}

// Of the items from `begin` on.
void StepDelta::add_level(int32_t begin) {
    const int32_t least = chunked_ ? kChunkedTokens : INT32_MAX;
    const auto chunked =
        std::stable_partition(items_.begin() + begin, items_.end(),
                              [&](const DeltaItem &item) { return item.token_count < least; });
    const auto several =
        std::stable_partition(items_.begin() + begin, chunked,
                              [](const DeltaItem &item) { return item.token_count == 1; });
    const auto count = [](const auto &all) { return static_cast<int32_t>(all.size()); };
    DeltaLevel level{};
    level.begin = begin;
    level.several = static_cast<int32_t>(several - items_.begin());
    level.chunked = static_cast<int32_t>(chunked - items_.begin());
    level.end = count(items_);
    level.chunk_begin = count(chunks_);
    for (int32_t i = level.chunked; i < level.end; ++i) {
        for (int32_t t = 0; t < items_[static_cast<size_t>(i)].token_count; t += kDeltaChunk) {
            chunks_.push_back({i, t});
        }
    }
    level.chunk_end = count(chunks_);
    levels_.push_back(level);
    form_.push_back(static_cast<uint8_t>((level.chunked > level.begin ? kStepped : 0) |
                                         (level.end > level.several ? kSeveral : 0) |
                                         (level.end > level.chunked ? kChunked : 0)));
}

Status StepDelta::stage(const TokenBatch &batch, StepInput *input, Staging *staging) {
    if (slot_bytes_ == 0) return {};
    read_nodes(batch);
    RETURN_IF_ERROR(input->stage<DeltaItem>(kDeltaItems, items_, staging));
    RETURN_IF_ERROR(input->stage<DeltaChunk>(kDeltaChunks, chunks_, staging));
    return input->stage<DeltaLevel>(kDeltaLevels, levels_, staging);
}

// ---- Device ----

DeltaArguments StepDelta::arguments(size_t layer, const DeviceLayer &weights,
                                    const StepInput &input) const {
    const LinearAttention &delta = model_.layers[layer].linear_attention;
    DeltaArguments a{};
    a.element = options_.element;
    a.state = options_.state;
    a.stride = weights.qkv.rows;
    a.convolution = weights.delta.convolution;
    a.decay = weights.delta.decay;
    a.step = weights.delta.step;
    a.norm = weights.delta.norm.weight;
    a.epsilon = weights.delta.norm.epsilon;
    a.states = slots_.data() + begin_[layer];
    a.slot_bytes = slot_bytes_;
    a.items = input.at<DeltaItem>(kDeltaItems);
    a.key_heads = delta.key_heads;
    a.value_heads = delta.value_heads;
    a.key_dim = delta.key_dim;
    a.value_dim = delta.value_dim;
    a.sms = options_.sms;
    a.sm90 = options_.sm90;
    return a;
}

Status StepDelta::launch(size_t layer, const DeviceLayer &weights, const void *projected, void *out,
                         int64_t tokens, const StepInput &input, cudaStream_t stream) const {
    DeltaArguments a = arguments(layer, weights, input);
    a.projected = projected;
    a.out = out;
    // Not the number of items: a graph's next replay may have more, of as many tokens.
    a.most_items = static_cast<int32_t>(tokens);
    if (model_.layers[layer].linear_attention.rule == StateRule::state_space) {
        return launch_state_space(layer, weights, a, tokens, input, stream);
    }
    return launch_delta_net(a, tokens, input, stream);
}

Status StepDelta::launch_delta_net(DeltaArguments a, int64_t tokens, const StepInput &input,
                                   cudaStream_t stream) const {
    for (size_t l = 0; l < form_.size(); ++l) {
        a.level = input.at<DeltaLevel>(kDeltaLevels) + l;
        if (form_[l] & kChunked) {
            // Blocks go on to other chunks where a replay has more.
            const DeltaLevel &level = levels_[l];
            const int32_t chunks = level.chunk_end - level.chunk_begin;
            const ChunkArguments c{a,
                                   input.at<DeltaChunk>(kDeltaChunks),
                                   chunks,
                                   level.end - level.chunked,
                                   tokens,
                                   mixed_.data(),
                                   gates_.as<float2>(),
                                   w_.data(),
                                   p_.data()};
            RETURN_IF_CUDA(launch_delta_chunks(c, stream));
        }
        if (form_[l] & kStepped) RETURN_IF_CUDA(launch_delta_steps(a, stream));
        if (form_[l] & kSeveral) RETURN_IF_CUDA(launch_delta_rings(a, stream));
    }
    return {};
}

Status StepDelta::launch_state_space(size_t layer, const DeviceLayer &weights, DeltaArguments a,
                                     int64_t tokens, const StepInput &input,
                                     cudaStream_t stream) const {
    const LinearAttention &space = model_.layers[layer].linear_attention;
    const DeviceDelta &vectors = weights.delta;
    StateSpaceArguments s{
        a, vectors.bias, vectors.skip, space.least_step, space.most_step, space.norm_parts};
    for (size_t l = 0; l < form_.size(); ++l) {
        s.delta.level = input.at<DeltaLevel>(kDeltaLevels) + l;
        if (form_[l] & kChunked) {
            const DeltaLevel &level = levels_[l];
            const StateSpaceChunks c{s, input.at<DeltaChunk>(kDeltaChunks),
                                     level.chunk_end - level.chunk_begin, level.end - level.chunked,
                                     mixed_.data()};
            RETURN_IF_CUDA(launch_state_space_chunks(c, stream));
        }
        if (form_[l] & kStepped) RETURN_IF_CUDA(launch_state_space_steps(s, stream));
        if (form_[l] & kSeveral) RETURN_IF_CUDA(launch_delta_rings(s.delta, stream));
    }
    RETURN_IF_CUDA(launch_state_space_norm(s, tokens, stream));
    return {};
}

} // namespace batchllm::cuda
