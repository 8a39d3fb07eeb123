#include "throughput_floor.h"

#include <algorithm>
#include <cstdio>

#include "clock.h"

namespace batchllm {
namespace {

// Seconds of the linear layers of one step, the median of five.
Result<double> time_linear(cuda::CudaBackend *backend, int64_t tokens, int64_t wanted) {
    std::vector<double> times;
    for (int i = 0; i < 6; ++i) {
        const auto start = Clock::now();
        RETURN_IF_ERROR(backend->forward().run_linear(tokens, wanted, backend->stream()));
        RETURN_IF_ERROR(cuda::check_cuda(cudaStreamSynchronize(backend->stream()), "linear"));
        if (i > 0) times.push_back(seconds_since(start));
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

} // namespace

void AttentionFloor::add(const TokenBatch &batch, const ModelConfig &c) {
    const double pair = 4.0 * c.heads * c.head_dim * c.layers;
    const double key = 2.0 * c.kv_heads * c.head_dim * 2 * c.layers; // 2-byte elements
    read_.assign(batch.nodes.size(), 0);
    for (size_t n = 0; n < batch.nodes.size(); ++n) {
        const ContextNode &node = batch.nodes[n];
        if (node.token_count == 1) {
            for (auto up = static_cast<int32_t>(n); up >= 0;
                 up = batch.nodes[static_cast<size_t>(up)].parent) {
                if (read_[static_cast<size_t>(up)] != 0) break;
                read_[static_cast<size_t>(up)] = 1;
                bytes += key * batch.nodes[static_cast<size_t>(up)].length;
            }
        } else {
            const double last = node.start + node.length;
            flops += pair * node.token_count * (last - (node.token_count - 1) / 2.0);
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
