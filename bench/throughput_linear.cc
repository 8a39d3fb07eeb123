#include "throughput_linear.h"

#include <algorithm>
#include <cstdio>

namespace batchllm {
namespace {

constexpr int64_t kTokensAPass = 4096;

} // namespace

LinearProbe::LinearProbe(cuda::CudaBackend *backend, int64_t sampled, int64_t all, int64_t decoding)
    : backend_(backend), sampled_(sampled), all_(all), decoding_(decoding) {
    const int64_t most = backend->info().step_tokens;
    if (decoding > 0 && decoding < std::min<int64_t>(1024, most)) tokens_.push_back(decoding);
    for (const int64_t tokens : {1024, 2048, 4096, 8192}) {
        if (tokens < most) tokens_.push_back(tokens);
    }
    tokens_.push_back(most);
}

int64_t LinearProbe::wanted(int64_t tokens) const {
    if (tokens == decoding_) return tokens;
    return std::clamp<int64_t>(tokens * sampled_ / all_, 1, tokens);
}

Status LinearProbe::follow(int64_t tokens) {
    for (; tokens > 0 && !done(); tokens -= kTokensAPass) RETURN_IF_ERROR(run());
    return {};
}

Status LinearProbe::run() {
    const int64_t tokens = tokens_[passes_.size() % tokens_.size()];
    RETURN_IF_CUDA(cudaSetDevice(backend_->device()));
    Pass pass;
    ASSIGN_OR_RETURN(pass.begin, cuda::Event::create(true));
    ASSIGN_OR_RETURN(pass.end, cuda::Event::create(true));
    const cudaStream_t stream = backend_->stream();
    RETURN_IF_CUDA(cudaEventRecord(pass.begin, stream));
    RETURN_IF_ERROR(backend_->step().run_linear(tokens, wanted(tokens), stream));
    RETURN_IF_CUDA(cudaEventRecord(pass.end, stream));
    passes_.push_back(std::move(pass));
    return {};
}

Result<LinearRate> LinearProbe::best(bool print) {
    RETURN_IF_CUDA(cudaStreamSynchronize(backend_->stream()));
    LinearRate best;
    for (size_t i = 0; i < tokens_.size(); ++i) {
        std::vector<float> took; // milliseconds
        for (size_t p = i + tokens_.size(); p < passes_.size(); p += tokens_.size()) {
            float milliseconds = 0;
            RETURN_IF_CUDA(cudaEventElapsedTime(&milliseconds, passes_[p].begin, passes_[p].end));
            took.push_back(milliseconds);
        }
        std::sort(took.begin(), took.end());
        const double median = took[took.size() / 2];
        const double rate = static_cast<double>(tokens_[i]) / median * 1e3;
        if (print) {
            std::printf("linear layers, %lld tokens, %lld logits: %.2f ms (%.2f to %.2f), %.1f "
                        "thousand tokens/s\n",
                        static_cast<long long>(tokens_[i]),
                        static_cast<long long>(wanted(tokens_[i])), median,
                        static_cast<double>(took.front()), static_cast<double>(took.back()),
                        rate * 1e-3);
        }
        if (rate > best.tokens_a_second) best = {rate, tokens_[i]};
    }
    return best;
}

} // namespace batchllm
