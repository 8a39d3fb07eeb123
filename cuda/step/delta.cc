#include "step/delta.h"

#include <algorithm>

namespace batchllm::cuda {
namespace {

constexpr int64_t kAlign = 256;

} // namespace

StepDelta::StepDelta(const Model &model, DType element, int32_t sms)
    : model_(model), element_(element), sms_(sms) {
    for (const Layer &layer : model_.layers) {
        begin_.push_back(slot_bytes_);
        const DeltaNet &delta = layer.delta;
        if (!delta) continue;
        const int64_t bytes = delta.values_size() * delta.key_dim * dtype_bytes(DType::f32) +
                              kRing * delta.channels() * dtype_bytes(element_);
        slot_bytes_ += (bytes + kAlign - 1) / kAlign * kAlign;
    }
}

Status StepDelta::take_slots(int64_t slots) {
    // What was never written is never read.
    ASSIGN_OR_RETURN(slots_, DeviceMemory::create(slots * slot_bytes_, "the state slots"));
    return {};
}

Status StepDelta::allocate(int64_t rows, StepInput *input) {
    if (slot_bytes_ == 0) return {};
    RETURN_IF_ERROR(input->make(kDeltaItems, rows * static_cast<int64_t>(sizeof(DeltaItem))));
    return input->make(kDeltaLevels, 64 * static_cast<int64_t>(sizeof(DeltaLevel)));
}

// ---- Host ----

void StepDelta::read_nodes(const TokenBatch &batch) {
    items_.clear();
    levels_.clear();
    form_.clear();
    // Of a node with tokens, one more than its parent's where it starts from what that makes.
    std::vector<int32_t> level_of(batch.nodes.size(), -1);
    int32_t most = -1;
    for (size_t n = 0; n < batch.nodes.size(); ++n) {
        const ContextNode &node = batch.nodes[n];
        if (node.token_count == 0) continue;
        const bool starts = node.length == node.token_count && node.parent >= 0;
        level_of[n] = starts ? level_of[static_cast<size_t>(node.parent)] + 1 : 0;
        most = std::max(most, level_of[n]);
    }
    for (int32_t l = 0; l <= most; ++l) {
        const auto begin = static_cast<int32_t>(items_.size());
        for (size_t n = 0; n < batch.nodes.size(); ++n) {
            if (level_of[n] != l) continue;
            const ContextNode &node = batch.nodes[n];
            int32_t from = node.state;
            if (node.length == node.token_count) {
                from = node.parent < 0 ? -1 : batch.nodes[static_cast<size_t>(node.parent)].state;
            }
            items_.push_back({node.state, from, node.token_begin, node.token_count,
                              node.start + node.length - node.token_count});
        }
        const auto several =
            std::stable_partition(items_.begin() + begin, items_.end(),
                                  [](const DeltaItem &item) { return item.token_count == 1; });
        DeltaLevel level{};
        level.begin = begin;
        level.several = static_cast<int32_t>(several - items_.begin());
        level.chunked = level.end = static_cast<int32_t>(items_.size());
        levels_.push_back(level);
        form_.push_back(static_cast<uint8_t>((level.chunked > level.begin ? kStepped : 0) |
                                             (level.end > level.several ? kSeveral : 0)));
    }
}

Status StepDelta::stage(const TokenBatch &batch, StepInput *input, Staging *staging) {
    if (slot_bytes_ == 0) return {};
    read_nodes(batch);
    RETURN_IF_ERROR(input->stage<DeltaItem>(kDeltaItems, items_, staging));
    return input->stage<DeltaLevel>(kDeltaLevels, levels_, staging);
}

// ---- Device ----

DeltaArguments StepDelta::arguments(size_t layer, const DeviceLayer &weights,
                                    const StepInput &input) const {
    const DeltaNet &delta = model_.layers[layer].delta;
    DeltaArguments a{};
    a.element = element_;
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
    a.sms = sms_;
    return a;
}

Status StepDelta::launch(size_t layer, const DeviceLayer &weights, const void *projected, void *out,
                         int64_t tokens, const StepInput &input, cudaStream_t stream) const {
    DeltaArguments a = arguments(layer, weights, input);
    a.projected = projected;
    a.out = out;
    // Not the number of items: a graph's next replay may have more, of as many tokens.
    a.most_items = static_cast<int32_t>(tokens);
    for (size_t l = 0; l < form_.size(); ++l) {
        a.level = input.at<DeltaLevel>(kDeltaLevels) + l;
        if (form_[l] & kStepped) RETURN_IF_CUDA(launch_delta_steps(a, stream));
        if (form_[l] & kSeveral) RETURN_IF_CUDA(launch_delta_rings(a, stream));
    }
    return {};
}

} // namespace batchllm::cuda
