#include "backend/cpu/cpu_backend.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <numeric>

#include "backend/check_pages.h"
#include "backend/cpu/processor.h"

namespace batchllm::cpu {
namespace {

// Rows whose logits are held at once: enough to read the head's weights at full use of the
// processor, few enough for vocabularies of hundreds of thousands.
constexpr int64_t kLogitsRows = 64;
constexpr int64_t kDefaultPageTokens = 16;
constexpr double kDefaultKvFraction = 0.4;

struct Choice {
    DType element = DType::f32;
    Isa isa = Isa::portable;
    int32_t page_tokens = kDefaultPageTokens;
};

Result<Choice> read_options(const Model &model, const BackendOptions &options) {
    Choice choice;
    const bool fast_bf16 = isa_runs_here(Isa::avx512_bf16);
    const std::string &type = options.compute_type;
    if (type.empty() || type == "auto") {
        choice.element = fast_bf16 && model.dtype != DType::f32 ? DType::bf16 : DType::f32;
    } else if (type == "bf16") {
        if (!fast_bf16) {
            return error(BATCHLLM_ERROR_BACKEND_UNAVAILABLE,
                         "compute_type bf16: this processor has no bfloat16 instructions "
                         "(AVX512_BF16); use f32 or auto");
        }
        choice.element = DType::bf16;
    } else if (type == "f32") {
        choice.element = DType::f32;
    } else {
        return error(BATCHLLM_ERROR_UNSUPPORTED,
                     "compute_type %s: the cpu backend has auto, bf16 and f32", type.c_str());
    }
    choice.isa = best_isa(choice.element);
    for (const auto &[key, value] : options.extra) {
        if (key == "page_tokens") {
            const char *end = value.data() + value.size();
            const auto [stop, failure] = std::from_chars(value.data(), end, choice.page_tokens);
            if (failure != std::errc() || stop != end || choice.page_tokens < kGroupTokens ||
                choice.page_tokens > 1024 || choice.page_tokens % kGroupTokens != 0) {
                return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                             "backend option page_tokens=%s: not a multiple of 16 from 16 to 1024",
                             value.c_str());
            }
        } else if (key == "kernels") {
            ASSIGN_OR_RETURN(choice.isa, isa_from_name(value.c_str()));
            if (!isa_runs_here(choice.isa) || kernels_for(choice.isa, choice.element) == nullptr) {
                return error(BATCHLLM_ERROR_BACKEND_UNAVAILABLE,
                             "backend option kernels=%s: not for %s on this processor",
                             value.c_str(), dtype_name(choice.element));
            }
        } else {
            return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                         "backend option %s: the cpu backend has page_tokens and kernels",
                         key.c_str());
        }
    }
    return choice;
}

Result<int64_t> kv_bytes(const BackendOptions &options) {
    const int64_t available = available_memory();
    if (options.kv_memory_bytes < 0 || options.kv_memory_fraction < 0 ||
        options.kv_memory_fraction > 1) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "kv_memory: %lld bytes, fraction %g: negative, or a fraction above 1",
                     static_cast<long long>(options.kv_memory_bytes), options.kv_memory_fraction);
    }
    if (options.kv_memory_bytes > 0) {
        if (available > 0 && options.kv_memory_bytes > available) {
            return error(BATCHLLM_ERROR_OUT_OF_MEMORY,
                         "kv_memory_bytes %lld: only %lld bytes of memory are available",
                         static_cast<long long>(options.kv_memory_bytes),
                         static_cast<long long>(available));
        }
        return options.kv_memory_bytes;
    }
    if (available == 0) {
        return error(BATCHLLM_ERROR_OUT_OF_MEMORY,
                     "kv_memory_bytes: the memory available here is not known; name a number");
    }
    const double fraction =
        options.kv_memory_fraction > 0 ? options.kv_memory_fraction : kDefaultKvFraction;
    return static_cast<int64_t>(static_cast<double>(available) * fraction);
}

} // namespace

Result<std::unique_ptr<CpuBackend>> CpuBackend::create(const Model &model,
                                                       const BackendOptions &options) {
    ASSIGN_OR_RETURN(const Choice choice, read_options(model, options));
    const Kernels *kernels = kernels_for(choice.isa, choice.element);
    if (kernels == nullptr) {
        return error(BATCHLLM_ERROR_BACKEND_UNAVAILABLE, "cpu backend: no kernels for %s",
                     dtype_name(choice.element));
    }
    std::unique_ptr<CpuBackend> backend(new CpuBackend());
    backend->pool_ = std::make_unique<ThreadPool>(options.threads);
    const int32_t threads = backend->pool_->size();

    BackendInfo &info = backend->info_;
    info.name = "cpu";
    info.compute_type = dtype_name(choice.element);
    info.device = processor_name() + ", " + std::to_string(threads) +
                  (threads == 1 ? " thread, " : " threads, ") + kernels->name;
    info.vocabulary = model.vocabulary;
    info.page_tokens = choice.page_tokens;
    // The matrix products are at full rate from a few hundred rows on; more threads want more.
    info.step_tokens = options.step_tokens > 0
                           ? options.step_tokens
                           : std::clamp<int64_t>(int64_t{64} * threads, 512, 2048);

    ASSIGN_OR_RETURN(backend->forward_,
                     Forward::create(model, *kernels, backend->pool_.get(), info.step_tokens));
    ASSIGN_OR_RETURN(const int64_t bytes, kv_bytes(options));
    ASSIGN_OR_RETURN(KvPages pages,
                     KvPages::create(model, choice.element, choice.page_tokens, bytes));
    info.page_bytes = pages.page_bytes();
    info.pages = pages.pages();
    info.kv_windows = model.kv_windows();
    RETURN_IF_ERROR(backend->forward_->take_pages(std::move(pages)));
    ASSIGN_OR_RETURN(backend->logits_,
                     Buffer::create(kLogitsRows * info.vocabulary * int64_t{4}, "logits"));
    backend->copies_.resize(static_cast<size_t>(threads));
    return backend;
}

// What would otherwise read or write past an end; the rest is the scheduler's word.
Status CpuBackend::check(const TokenBatch &batch) const {
    const int64_t tokens = static_cast<int64_t>(batch.tokens.size());
    int64_t covered = 0;
    for (size_t n = 0; n < batch.nodes.size(); ++n) {
        const ContextNode &node = batch.nodes[n];
        if (node.parent < -1 || node.parent >= static_cast<int32_t>(n) || node.length < 0 ||
            node.token_count < 0 || node.token_count > node.length || node.token_begin < 0 ||
            int64_t{node.token_begin} + node.token_count > tokens) {
            return error(BATCHLLM_ERROR_INTERNAL, "cpu backend: context node %zu is malformed", n);
        }
        covered += node.token_count;
        for (int32_t i = 0; i < node.token_count; ++i) {
            const int32_t t = node.token_begin + i;
            if (batch.positions[t] != node.start + node.length - node.token_count + i) {
                return error(BATCHLLM_ERROR_INTERNAL, "cpu backend: token %d has position %d", t,
                             batch.positions[t]);
            }
        }
    }
    if (covered != tokens || batch.positions.size() != batch.tokens.size()) {
        return error(BATCHLLM_ERROR_INTERNAL, "cpu backend: %lld tokens, nodes hold %lld",
                     static_cast<long long>(tokens), static_cast<long long>(covered));
    }
    for (int32_t token : batch.tokens) {
        if (token < 0 || token >= info_.vocabulary) {
            return error(BATCHLLM_ERROR_INTERNAL, "cpu backend: token id %d", token);
        }
    }
    RETURN_IF_ERROR(check_pages(batch, info_));
    for (const LogitsRow &row : batch.logits) {
        if (row.token < 0 || row.token >= tokens) {
            return error(BATCHLLM_ERROR_INTERNAL, "cpu backend: logits of token %d", row.token);
        }
        for (int32_t target : row.targets) {
            if (target < 0 || target >= info_.vocabulary) {
                return error(BATCHLLM_ERROR_INTERNAL, "cpu backend: target id %d", target);
            }
        }
    }
    return {};
}

Status CpuBackend::compute(const TokenBatch &batch, BatchOutput *output) {
    const auto start = std::chrono::steady_clock::now();
    RETURN_IF_ERROR(check(batch));
    const size_t rows = batch.logits.size();

    // The wanted tokens in ascending order, and who wants each.
    by_token_.resize(rows);
    std::iota(by_token_.begin(), by_token_.end(), 0);
    std::stable_sort(by_token_.begin(), by_token_.end(), [&](int32_t a, int32_t b) {
        return batch.logits[a].token < batch.logits[b].token;
    });
    wanted_.clear();
    begin_.clear();
    for (size_t i = 0; i < rows; ++i) {
        const int32_t token = batch.logits[by_token_[i]].token;
        if (wanted_.empty() || wanted_.back() != token) {
            wanted_.push_back(token);
            begin_.push_back(static_cast<int32_t>(i));
        }
    }
    begin_.push_back(static_cast<int32_t>(rows));

    output->samples.assign(rows, SampleOutput{});
    target_begin_.resize(rows);
    int64_t targets = 0;
    for (size_t i = 0; i < rows; ++i) {
        target_begin_[i] = targets;
        targets += static_cast<int64_t>(batch.logits[i].targets.size());
    }
    output->target_logprobs.assign(static_cast<size_t>(targets), 0.0f);

    if (!batch.tokens.empty()) RETURN_IF_ERROR(forward_->run(batch, wanted_));
    const int64_t wanted = static_cast<int64_t>(wanted_.size());
    for (int64_t first = 0; first < wanted; first += kLogitsRows) {
        const int64_t count = std::min(kLogitsRows, wanted - first);
        RETURN_IF_ERROR(forward_->logits(first, count, logits_.floats()));
        choose(batch, first, count, output);
    }
    last_run_seconds_ =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return {};
}

void CpuBackend::choose(const TokenBatch &batch, int64_t first, int64_t count,
                        BatchOutput *output) {
    const auto start = std::chrono::steady_clock::now();
    const size_t vocabulary = static_cast<size_t>(info_.vocabulary);
    pool_->parallel_for(count, [&](int64_t i, int32_t thread) {
        const std::span<float> logits(logits_.floats() + i * info_.vocabulary, vocabulary);
        const int32_t begin = begin_[first + i];
        const int32_t end = begin_[first + i + 1];
        // The sampler changes the logits: scores come first, and every sample but the last one
        // works on a copy.
        int32_t samples = 0;
        for (int32_t r = begin; r < end; ++r) {
            const int32_t row = by_token_[r];
            const LogitsRow &wanted = batch.logits[row];
            if (wanted.targets.empty()) {
                ++samples;
                continue;
            }
            const std::span<float> logprobs(output->target_logprobs.data() + target_begin_[row],
                                            wanted.targets.size());
            output->samples[row].finite = score(logits, wanted.targets, logprobs);
        }
        for (int32_t r = begin; r < end; ++r) {
            const int32_t row = by_token_[r];
            const LogitsRow &wanted = batch.logits[row];
            if (!wanted.targets.empty()) continue;
            if (--samples > 0) {
                std::vector<float> &copy = copies_[thread];
                copy.assign(logits.begin(), logits.end());
                sample(copy, wanted.sample, &output->samples[row]);
            } else {
                sample(logits, wanted.sample, &output->samples[row]);
            }
        }
    });
    forward_->seconds().sample +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

} // namespace batchllm::cpu

namespace batchllm {

Result<std::unique_ptr<Backend>> make_cpu_backend(const Model &model,
                                                  const BackendOptions &options) {
    ASSIGN_OR_RETURN(auto backend, cpu::CpuBackend::create(model, options));
    return std::unique_ptr<Backend>(std::move(backend));
}

} // namespace batchllm
