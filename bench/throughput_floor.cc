#include "throughput_floor.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace batchllm {

AttentionFloor::AttentionFloor(const Model &model, int32_t key_bytes, double rate)
    : bandwidth(rate) {
    for (const Layer &layer : model.layers) {
        const LinearAttention *linear = layer.linear_attention();
        of_state_ += 4.0 * static_cast<double>(linear != nullptr ? linear->matrices_size()
                                                                 : layer.state_size());
        const Attention *a = layer.attention();
        if (a == nullptr) continue;
        auto at = std::find_if(layers_.begin(), layers_.end(),
                               [&](const Layers &l) { return l.window == a->window; });
        if (at == layers_.end()) at = layers_.insert(at, Layers{a->window, 0, 0, 0});
        // Of latents the plain form for prompts, without what expanding takes, and the absorbed one for decode.
        const Latent &latent = a->latent;
        const double pair = 4.0 * a->heads * a->head_dim;
        at->pair += latent ? 2.0 * a->heads * (latent.query_dim() + latent.value_dim) : pair;
        at->decode_pair += latent ? 2.0 * a->heads * (2 * latent.rank + latent.turned) : pair;
        at->key += static_cast<double>(a->kept_size()) * key_bytes;
    }
}

void AttentionFloor::add(const TokenBatch &batch) {
    for (const Layers &layers : layers_) add(batch, layers);
    for (const ContextNode &node : batch.nodes) {
        if (node.token_count > 0) state_bytes += 2 * of_state_;
    }
}

void AttentionFloor::add(const TokenBatch &batch, const Layers &layers) {
    const int32_t window = layers.window > 0 ? layers.window : INT32_MAX;
    seen_.assign(batch.nodes.size(), {});
    for (size_t n = 0; n < batch.nodes.size(); ++n) {
        const ContextNode &node = batch.nodes[n];
        const int32_t end = node.start + node.length; // one past the last token's position
        if (node.token_count == 1) {
            const int32_t first = end > window ? end - window : 0; // the first position seen
            for (auto up = static_cast<int32_t>(n); up >= 0;
                 up = batch.nodes[static_cast<size_t>(up)].parent) {
                const ContextNode &part = batch.nodes[static_cast<size_t>(up)];
                Seen &seen = seen_[static_cast<size_t>(up)];
                const int32_t keys =
                    std::min(part.length, std::max(0, part.start + part.length - first));
                seen.keys = std::max(seen.keys, keys);
                seen.pairs += keys;
            }
        } else {
            // The sum of min(position + 1, window) over the tokens.
            const double count = node.token_count;
            const double all = std::clamp(window - (end - node.token_count), 0, node.token_count);
            const double last = end - (count - all); // one past the first `all` tokens
            flops += layers.pair * (all * (last - (all - 1) / 2) + (count - all) * window);
        }
    }
    for (const Seen &seen : seen_) {
        const double read = layers.key * seen.keys;
        const double arithmetic = layers.decode_pair * static_cast<double>(seen.pairs);
        bytes += read;
        decode_excess += std::max(0.0, arithmetic / kFlops - read / bandwidth);
    }
}

WeightsRead::WeightsRead(const Model &model, int64_t all_bytes)
    : always_(static_cast<double>(all_bytes)) {
    double elements = 0; // of all but the experts, which are in 16 bits
    for_each_tensor(model, [&](const Tensor &tensor) {
        elements += static_cast<double>(tensor.rows) * static_cast<double>(tensor.columns);
    });
    for (const Layer &layer : model.layers) {
        const Experts *experts = layer.experts();
        if (experts == nullptr) continue;
        const auto count = static_cast<double>(experts->each.size());
        chosen_ = experts->router.chosen / count;
        const FeedForward &one = experts->each[0];
        const auto matrices = static_cast<double>(one.gate.rows() + one.up.rows() + one.width);
        elements -= count * matrices * model.hidden;
    }
    if (chosen_ == 0) return;
    experts_ = std::max(0.0, always_ - 2 * elements);
    always_ -= experts_;
}

double WeightsRead::bytes(int64_t tokens) const {
    return always_ + experts_ * (1 - std::pow(1 - chosen_, static_cast<double>(tokens)));
}

} // namespace batchllm
