#include "throughput_floor.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>

#include "clock.h"

namespace batchllm {
namespace {

// Seconds of the linear layers of one step, the median of five.
Result<double> time_linear(cuda::CudaBackend *backend, int64_t tokens, int64_t wanted) {
    std::vector<double> times;
    for (int i = 0; i < 6; ++i) {
        const auto start = Clock::now();
        RETURN_IF_ERROR(backend->step().run_linear(tokens, wanted, backend->stream()));
        RETURN_IF_ERROR(cuda::check_cuda(cudaStreamSynchronize(backend->stream()), "linear"));
        if (i > 0) times.push_back(seconds_since(start));
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

} // namespace

AttentionFloor::AttentionFloor(const Model &model, int32_t key_bytes) {
    for (const Layer &layer : model.layers) {
        const DeltaNet &delta = layer.delta;
        of_state_ += 4.0 * static_cast<double>(delta.values_size() * delta.key_dim);
        if (delta) continue;
        const Attention &a = layer.attention;
        auto at = std::find_if(layers_.begin(), layers_.end(),
                               [&](const Layers &l) { return l.window == a.window; });
        if (at == layers_.end()) at = layers_.insert(at, Layers{a.window, 0, 0});
        at->pair += 4.0 * a.heads * a.head_dim;
        at->key += 2.0 * a.kv_heads * a.head_dim * key_bytes;
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
    read_.assign(batch.nodes.size(), 0);
    for (size_t n = 0; n < batch.nodes.size(); ++n) {
        const ContextNode &node = batch.nodes[n];
        const int32_t end = node.start + node.length; // the last token's position, and one
        if (node.token_count == 1) {
            const int32_t first = end > window ? end - window : 0; // that it sees
            for (auto up = static_cast<int32_t>(n); up >= 0;
                 up = batch.nodes[static_cast<size_t>(up)].parent) {
                const ContextNode &part = batch.nodes[static_cast<size_t>(up)];
                int32_t &read = read_[static_cast<size_t>(up)];
                const int32_t seen =
                    std::min(part.length, std::max(0, part.start + part.length - first));
                if (seen <= read) break; // as was all above it
                bytes += layers.key * (seen - read);
                read = seen;
            }
        } else {
            // The sum of min(position + 1, window) over the tokens.
            const double count = node.token_count;
            const double all = std::clamp(window - (end - node.token_count), 0, node.token_count);
            const double last = end - (count - all); // of the first `all` of them, and one
            flops += layers.pair * (all * (last - (all - 1) / 2) + (count - all) * window);
        }
    }
}

Result<LinearRate> best_linear_rate(cuda::CudaBackend *backend, int64_t sampled, int64_t all,
                                    bool print) {
    const int64_t most = backend->info().step_tokens;
    LinearRate best;
    for (const int64_t at : {int64_t{1024}, int64_t{2048}, int64_t{3072}, most}) {
        if (at > most) continue;
        const int64_t wanted = std::clamp<int64_t>(at * sampled / all, 1, at);
        ASSIGN_OR_RETURN(const double took, time_linear(backend, at, wanted));
        if (print) {
            std::printf(
                "linear layers, %lld tokens, %lld logits: %.2f ms, %.1f thousand tokens/s\n",
                static_cast<long long>(at), static_cast<long long>(wanted), took * 1e3,
                static_cast<double>(at) / took * 1e-3);
        }
        if (static_cast<double>(at) / took > best.tokens_a_second) {
            best.tokens_a_second = static_cast<double>(at) / took;
            best.tokens = at;
        }
    }
    return best;
}

} // namespace batchllm
