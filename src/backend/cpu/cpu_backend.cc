#include "backend/cpu/cpu_backend.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>

#include "backend/cpu/processor.h"
#include "backend/kv_type.h"
#include "backend/state_memory.h"
#include "backend/tensor_parallel.h"
#include "model/parts.h"

namespace batchllm::cpu {
namespace {

// How many rows have logits in memory at once: enough that reading the head's weights keeps the
// processor busy, few enough for vocabularies of hundreds of thousands.
constexpr int64_t kHeadRows = 64;
constexpr int64_t kDefaultPageTokens = 16;
constexpr int32_t kAdapterSlots = 4096;
// Memory for adapters unless an option says how much: a share of what is available, and the most.
constexpr int64_t kAdapterShare = 16;
constexpr int64_t kAdapterBytes = int64_t{2} << 30;
constexpr int32_t kPictureSlots = 1024;
// Memory for the outputs of pictures: likewise.
constexpr int64_t kPictureShare = 16;
constexpr int64_t kPictureBytes = int64_t{2} << 30;

struct Choice {
    DType element = DType::f32;
    Isa isa = Isa::portable;
    int32_t page_tokens = kDefaultPageTokens;
    int32_t ranks = 1;
    StateOptions states;
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
        } else if (key == tensor_parallel_key) {
            ASSIGN_OR_RETURN(const int32_t ranks, read_tensor_parallel(value));
            choice.ranks = std::max(ranks, 1);
        } else if (key == "kv_type" && value == "fp8") {
            return error(BATCHLLM_ERROR_UNSUPPORTED,
                         "backend option kv_type=fp8: the cpu backend keeps keys and values in the "
                         "compute type; cuda has fp8");
        } else if (key == "kv_type") {
            RETURN_IF_ERROR(read_kv_type(value, choice.element).status());
        } else {
            ASSIGN_OR_RETURN(const bool known,
                             read_state_option(key, value, &model, &choice.states));
            if (known) continue;
            return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                         "backend option %s: the cpu backend has page_tokens, kv_type, "
                         "state_slots, state_type, tensor_parallel, drafts and kernels",
                         key.c_str());
        }
    }
    if (options.reproducible) RETURN_IF_ERROR(check_reproducible(choice.states));
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
        options.kv_memory_fraction > 0 ? options.kv_memory_fraction : cpu_kv_fraction;
    return static_cast<int64_t>(static_cast<double>(available) * fraction);
}

// An adapter for each rank.
struct PackedForRanks final : PackedAdapter {
    std::vector<std::shared_ptr<const CpuAdapter>> of;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
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
    std::unique_ptr<CpuBackend> backend(new CpuBackend(model));
    if (choice.ranks > 1) backend->exchange_ = std::make_unique<Exchange>(choice.ranks);
    backend->ranks_.resize(static_cast<size_t>(choice.ranks));
    const int32_t all = options.threads > 0 ? options.threads : ThreadPool::available();
    int32_t threads = 0;
    for (OfRank &of : backend->ranks_) {
        // As many of each, so that its copies of what is not divided have the same bits.
        of.pool = std::make_unique<ThreadPool>(std::max(1, all / choice.ranks));
        of.copies.resize(static_cast<size_t>(of.pool->size()));
        threads += of.pool->size();
    }

    BackendInfo &info = backend->info_;
    info.name = "cpu";
    bool four_bits = false;
    for_each_tensor(model, [&](const Tensor &t) { four_bits = four_bits || t.dtype == DType::u4; });
    info.compute_type = dtype_name(choice.element) +
                        std::string(four_bits ? ", weights expanded from four bits" : "") +
                        name_of_states(choice.states);
    info.device = processor_name() + ", " + std::to_string(threads) +
                  (threads == 1 ? " thread, " : " threads, ") +
                  (choice.ranks > 1 ? std::to_string(choice.ranks) + " ranks, " : "") +
                  kernels->name;
    info.computes_on = {DeviceKind::processor, processor_name(), 0, 0};
    info.reproducible = options.reproducible;
    info.adapter_slots = kAdapterSlots;
    const int64_t available = available_memory(); // 0: not known
    info.adapter_bytes = options.adapter_memory_bytes > 0 ? options.adapter_memory_bytes
                         : available > 0 ? std::min(kAdapterBytes, available / kAdapterShare)
                                         : kAdapterBytes;
    info.vocabulary = model.vocabulary;
    info.hidden = model.hidden;
    info.page_tokens = choice.page_tokens;
    // Matrix products reach full speed at a few hundred rows; more threads need more.
    info.step_tokens = options.step_tokens > 0
                           ? options.step_tokens
                           : std::clamp<int64_t>(int64_t{64} * threads, 512, 2048);

    RETURN_IF_ERROR(backend->run_ranks([&](OfRank &of, Rank rank) -> Status {
        if (rank) {
            ASSIGN_OR_RETURN(of.part, part_of(model, rank.number, choice.ranks));
        }
        ASSIGN_OR_RETURN(of.forward,
                         Forward::create(of.part ? *of.part : model, *kernels, of.pool.get(),
                                         info.step_tokens, options.reproducible, rank));
        return {};
    }));
    if (model.tower != nullptr) {
        info.picture_slots = kPictureSlots;
        const int64_t most =
            available > 0 ? std::min(kPictureBytes, available / kPictureShare) : kPictureBytes;
        info.picture_tokens = most / CpuTower::token_bytes(model);
        backend->tower_ = std::make_unique<CpuTower>(model, *kernels, backend->ranks_[0].pool.get(),
                                                     kPictureSlots, options.reproducible);
        for (OfRank &of : backend->ranks_) of.forward->set_tower(backend->tower_.get());
    }
    info.weight_bytes = model.embedding.bytes();
    for (const OfRank &of : backend->ranks_) info.weight_bytes += of.forward->packed_bytes();
    // What follows is the same of all ranks.
    const Model &part = choice.ranks > 1 ? *backend->ranks_[0].part : model;
    ASSIGN_OR_RETURN(const int64_t bytes, kv_bytes(options));
    const MemoryNeeds needs{StatePool::slot_bytes(part, choice.states.type),
                            KvPages::token_bytes(part, choice.element), info.step_tokens};
    ASSIGN_OR_RETURN(const MemoryShares shares,
                     share_memory(bytes / choice.ranks, needs, choice.states.slots));
    if (shares.state_slots > 0) {
        for (OfRank &of : backend->ranks_) {
            ASSIGN_OR_RETURN(StatePool states,
                             StatePool::create(part, choice.states.type, shares.state_slots));
            of.forward->take_states(std::move(states));
        }
        info.state_slots = shares.state_slots;
        info.state_bytes = needs.slot_bytes * choice.ranks;
    }
    for (OfRank &of : backend->ranks_) {
        ASSIGN_OR_RETURN(KvPages pages, KvPages::create(part, choice.element, choice.page_tokens,
                                                        shares.bytes_left));
        info.page_bytes += pages.page_bytes();
        info.pages = info.pages == 0 ? pages.pages() : std::min(info.pages, pages.pages());
        if (info.warning.empty()) info.warning = pages.warning();
        RETURN_IF_ERROR(of.forward->take_pages(std::move(pages)));
    }
    info.kv_windows = model.kv_windows();
    ASSIGN_OR_RETURN(backend->logits_,
                     Buffer::create(kHeadRows * info.vocabulary * int64_t{4}, "logits"));
    return backend;
}

Status CpuBackend::run_ranks(const std::function<Status(OfRank &, Rank)> &task) {
    return batchllm::run_ranks(exchange_.get(), [&](int32_t rank) {
        return task(ranks_[static_cast<size_t>(rank)], Rank{exchange_.get(), rank});
    });
}

Status CpuBackend::forward(const TokenBatch &batch) {
    const auto start = std::chrono::steady_clock::now();
    RETURN_IF_ERROR(check_batch(batch, info_, nullptr));
    outputs_ = batch.outputs;
    rows_.read(batch);
    if (!batch.tokens.empty()) {
        RETURN_IF_ERROR(
            run_ranks([&](OfRank &of, Rank) { return of.forward->run(batch, rows_.tokens()); }));
    }
    last_run_seconds_ = seconds_since(start);
    return {};
}

Status CpuBackend::sample(std::span<const TokenMask> masks) {
    const auto start = std::chrono::steady_clock::now();
    output_.samples.assign(outputs_.size(), SampleOutput{});
    output_.target_logprobs.assign(static_cast<size_t>(rows_.targets()), 0.0f);
    RETURN_IF_ERROR(
        run_ranks([&](OfRank &of, Rank rank) { return sample_rows(&of, rank, masks); }));
    embed();
    last_run_seconds_ += seconds_since(start);
    return {};
}

Status CpuBackend::sample_rows(OfRank *of, Rank rank, std::span<const TokenMask> masks) {
    const auto wanted = static_cast<int64_t>(rows_.tokens().size());
    const auto ranks = static_cast<int64_t>(ranks_.size());
    for (int64_t first = 0; first < wanted; first += kHeadRows) {
        const int64_t count = std::min(kHeadRows, wanted - first);
        bool logits = false; // whether any token needs logits: not if all rows are embedded
        for (int64_t i = first; i < first + count; ++i) logits |= !rows_.rows_of(i).empty();
        if (!logits) continue;
        RETURN_IF_ERROR(of->forward->logits(first, count, logits_.floats()));
        RETURN_IF_ERROR(rank.meet());
        choose(of, masks, first, first + count * rank.number / ranks,
               first + count * (rank.number + 1) / ranks);
        RETURN_IF_ERROR(rank.meet());
    }
    return {};
}

Status CpuBackend::collect(BatchOutput *output) {
    std::swap(*output, output_);
    return {};
}

Status CpuBackend::load_pictures(std::span<const PictureLoad> pictures) {
    if (tower_ == nullptr) return Backend::load_pictures(pictures);
    for (const PictureLoad &load : pictures) {
        RETURN_IF_ERROR(check_picture(*model_.tower, load, info_));
    }
    return tower_->load(pictures);
}

Result<int64_t> CpuBackend::adapter_bytes(const Adapter &adapter) const {
    int64_t bytes = 0;
    for (const OfRank &of : ranks_) {
        bytes += of.part ? CpuAdapter::bytes(part_of(adapter, model_, *of.part))
                         : CpuAdapter::bytes(adapter);
    }
    return bytes;
}

Result<std::shared_ptr<const PackedAdapter>>
CpuBackend::pack_adapter(std::shared_ptr<const Adapter> adapter) const {
    auto packed = std::make_shared<PackedForRanks>();
    for (const OfRank &of : ranks_) {
        packed->of.push_back(of.part ? CpuAdapter::pack(part_of(*adapter, model_, *of.part))
                                     : CpuAdapter::pack(*adapter));
    }
    return std::shared_ptr<const PackedAdapter>(std::move(packed));
}

Status CpuBackend::load_adapter(int32_t slot, std::shared_ptr<const PackedAdapter> packed) {
    const auto &of_ranks = static_cast<const PackedForRanks &>(*packed).of;
    for (size_t r = 0; r < ranks_.size(); ++r) ranks_[r].forward->set_adapter(slot, of_ranks[r]);
    return {};
}

void CpuBackend::unload_adapter(int32_t slot) {
    for (OfRank &of : ranks_) of.forward->set_adapter(slot, nullptr);
}

// Rows [begin, end) of those whose logits are there from row `first` on.
void CpuBackend::choose(OfRank *of, std::span<const TokenMask> masks, int64_t first, int64_t begin,
                        int64_t end) {
    const auto start = std::chrono::steady_clock::now();
    const size_t vocabulary = static_cast<size_t>(info_.vocabulary);
    of->pool->parallel_for(end - begin, [&](int64_t i, int32_t thread) {
        const std::span<float> logits(logits_.floats() + (begin - first + i) * info_.vocabulary,
                                      vocabulary);
        const std::span<const int32_t> numbers = rows_.rows_of(begin + i);
        // The sampler changes the logits. So scores come first, and every sample but the last one
        // works on a copy.
        int32_t samples = 0;
        for (const int32_t number : numbers) {
            const OutputRow &row = outputs_[number];
            if (row.task != Task::score) {
                ++samples;
                continue;
            }
            const std::span<float> logprobs(
                output_.target_logprobs.data() + rows_.target_begin(number), row.targets.size());
            SampleOutput &output = output_.samples[number];
            output.finite = score(logits, row.targets, logprobs, row.likeliest(), &output.top);
        }
        for (const int32_t number : numbers) {
            if (outputs_[number].task == Task::score) continue;
            SampleInput input = outputs_[number].sample;
            if (!masks.empty()) input.mask = masks[number];
            if (--samples > 0) {
                std::vector<float> &copy = of->copies[static_cast<size_t>(thread)];
                copy.assign(logits.begin(), logits.end());
                batchllm::sample(copy, input, &output_.samples[number]);
            } else {
                batchllm::sample(logits, input, &output_.samples[number]);
            }
        }
    });
    of->forward->seconds().sample += seconds_since(start);
}

// The hidden states of embedded rows, each summed over the row's tokens.
void CpuBackend::embed() {
    const std::span<const int32_t> numbers = rows_.embedded_rows();
    const auto hidden = static_cast<size_t>(info_.hidden);
    output_.hidden.assign(numbers.size() * hidden, 0.0f);
    ranks_[0].pool->parallel_for(static_cast<int64_t>(numbers.size()), [&](int64_t i, int32_t) {
        const OutputRow &row = outputs_[numbers[i]];
        const std::span<float> sum =
            std::span(output_.hidden).subspan(static_cast<size_t>(i) * hidden, hidden);
        const int64_t first = rows_.place(row.token);
        for (int64_t t = 0; t < row.count; ++t) ranks_[0].forward->add_hidden(first + t, sum);
        const bool finite =
            std::all_of(sum.begin(), sum.end(), [](float x) { return std::isfinite(x); });
        output_.samples[numbers[i]].finite = finite;
    });
}

} // namespace batchllm::cpu

namespace batchllm {

Result<std::unique_ptr<Backend>> make_cpu_backend(const Model &model,
                                                  const BackendOptions &options) {
    ASSIGN_OR_RETURN(auto backend, cpu::CpuBackend::create(model, options));
    return std::unique_ptr<Backend>(std::move(backend));
}

} // namespace batchllm
