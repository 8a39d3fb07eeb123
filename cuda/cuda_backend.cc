#include "cuda_backend.h"

#include <algorithm>
#include <chrono>

#include "backend_options.h"

namespace batchllm::cuda {
namespace {

constexpr int64_t kFirstInput = int64_t{4} << 20; // bytes that hold most steps of 4,096 tokens

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

} // namespace

Result<std::unique_ptr<CudaBackend>> CudaBackend::create(const Model &model,
                                                         const BackendOptions &options) {
    ASSIGN_OR_RETURN(const int device, read_device(options.devices));
    ASSIGN_OR_RETURN(const cudaDeviceProp properties, open_device(device));
    ASSIGN_OR_RETURN(const CudaOptions read, read_options(model, options, properties));

    std::unique_ptr<CudaBackend> backend(new CudaBackend());
    backend->device_ = device;
    ASSIGN_OR_RETURN(backend->stream_, Stream::create());
    ASSIGN_OR_RETURN(backend->copies_, Stream::create());
    for (Slot &slot : backend->slots_) {
        ASSIGN_OR_RETURN(slot.sent, Event::create(false));
        ASSIGN_OR_RETURN(slot.begin, Event::create(true));
        ASSIGN_OR_RETURN(slot.end, Event::create(true));
    }
    for (Slot &slot : backend->slots_) {
        RETURN_IF_ERROR(slot.staging.reserve(kFirstInput));
        RETURN_IF_ERROR(slot.samples.reserve(read.forward.step_tokens));
    }
    ASSIGN_OR_RETURN(backend->forward_, Forward::create(model, read.forward));

    BackendInfo &info = backend->info_;
    info.name = "cuda";
    info.compute_type = dtype_name(read.forward.element);
    info.device = std::string(properties.name) + ", device " + std::to_string(device);
    info.vocabulary = model.vocabulary;
    info.page_tokens = kPageKeys;
    info.page_bytes = backend->forward_->page_bytes();
    info.step_tokens = read.forward.step_tokens;
    info.batches_in_flight = read.overlap ? kSlots : 1;
    info.warning = backend->forward_->warning();
    ASSIGN_OR_RETURN(info.pages, count_pages(options, info.page_bytes));
    RETURN_IF_ERROR(backend->forward_->take_pages(info.pages));
    RETURN_IF_CUDA(cudaDeviceSynchronize());
    return backend;
}

CudaBackend::~CudaBackend() {
    // Memory goes back to the device that it is of, whichever the thread had chosen.
    cudaSetDevice(device_);
    if (copies_ != nullptr) cudaStreamSynchronize(copies_);
    if (stream_ != nullptr) cudaStreamSynchronize(stream_);
}

// What would otherwise read or write past an end; the rest is the scheduler's word.
Status CudaBackend::check(const TokenBatch &batch) const {
    const auto tokens = static_cast<int64_t>(batch.tokens.size());
    if (tokens > info_.step_tokens || batch.positions.size() != batch.tokens.size()) {
        return error(BATCHLLM_ERROR_INTERNAL,
                     "cuda backend: %lld tokens, %zu positions, at most %lld",
                     static_cast<long long>(tokens), batch.positions.size(),
                     static_cast<long long>(info_.step_tokens));
    }
    int64_t covered = 0;
    for (size_t n = 0; n < batch.nodes.size(); ++n) {
        const ContextNode &node = batch.nodes[n];
        const int64_t pages = (int64_t{node.length} + kPageKeys - 1) / kPageKeys;
        if (node.parent < -1 || node.parent >= static_cast<int32_t>(n) || node.length < 0 ||
            node.token_count < 0 || node.token_count > node.length || node.token_begin < 0 ||
            int64_t{node.token_begin} + node.token_count > tokens || node.page_begin < 0 ||
            node.page_count < pages ||
            int64_t{node.page_begin} + node.page_count > static_cast<int64_t>(batch.pages.size())) {
            return error(BATCHLLM_ERROR_INTERNAL, "cuda backend: context node %zu is malformed", n);
        }
        covered += node.token_count;
        for (int32_t i = 0; i < node.token_count; ++i) {
            const auto t = static_cast<size_t>(node.token_begin + i);
            if (batch.positions[t] != node.start + node.length - node.token_count + i) {
                return error(BATCHLLM_ERROR_INTERNAL, "cuda backend: token %zu has position %d", t,
                             batch.positions[t]);
            }
        }
    }
    if (covered != tokens) {
        return error(BATCHLLM_ERROR_INTERNAL, "cuda backend: %lld tokens, nodes hold %lld",
                     static_cast<long long>(tokens), static_cast<long long>(covered));
    }
    const auto outside = [](const auto &values, int64_t limit) {
        return std::any_of(values.begin(), values.end(),
                           [&](int32_t value) { return value < 0 || value >= limit; });
    };
    if (outside(batch.pages, info_.pages)) {
        return error(BATCHLLM_ERROR_INTERNAL, "cuda backend: no such page");
    }
    for (const int32_t token : batch.tokens) {
        const int64_t fed = -1 - int64_t{token};
        if (token >= info_.vocabulary ||
            (token < 0 && (info_.batches_in_flight < 2 || last_ == nullptr ||
                           fed >= last_->samples.rows() || !last_->samples.feeds(fed)))) {
            return error(BATCHLLM_ERROR_INTERNAL, "cuda backend: no such token: %d", token);
        }
    }
    for (const LogitsRow &row : batch.logits) {
        if (row.token < 0 || row.token >= tokens || outside(row.targets, info_.vocabulary)) {
            return error(BATCHLLM_ERROR_INTERNAL, "cuda backend: logits of token %d", row.token);
        }
    }
    return {};
}

bool CudaBackend::feeds(const SampleInput &input) const {
    return info_.batches_in_flight > 1 && !StepSamples::needs_history(*input.params);
}

Status CudaBackend::submit(const TokenBatch &batch) {
    RETURN_IF_ERROR(failed_);
    if (in_flight_ >= info_.batches_in_flight) {
        return error(BATCHLLM_ERROR_INTERNAL, "cuda backend: %d batches are in flight", in_flight_);
    }
    RETURN_IF_ERROR(check(batch));
    Slot &slot = slots_[static_cast<size_t>(next_)];
    failed_ = submit_checked(batch, &slot);
    RETURN_IF_ERROR(failed_);
    last_ = &slot;
    next_ = (next_ + 1) % kSlots;
    ++in_flight_;
    return {};
}

Status CudaBackend::submit_checked(const TokenBatch &batch, Slot *slot) {
    const auto start = Clock::now();
    RETURN_IF_CUDA(cudaSetDevice(device_));
    // The slot's last batch was collected: nothing reads its memory any more.
    slot->staging.clear();
    RETURN_IF_ERROR(
        slot->samples.plan(batch, info_.vocabulary, forward_->logits_rows(), &slot->staging));
    if (batch.tokens.empty()) {
        RETURN_IF_CUDA(cudaEventRecord(slot->begin, stream_));
        return check_cuda(cudaEventRecord(slot->end, stream_), "a step");
    }
    RETURN_IF_ERROR(
        forward_->stage(batch, slot->samples.wanted(), slot->samples.rows(), &slot->staging));
    host_seconds_ += seconds_since(start);
    // While the batch before is computed.
    RETURN_IF_ERROR(slot->staging.send(copies_));
    RETURN_IF_CUDA(cudaEventRecord(slot->sent, copies_));
    RETURN_IF_CUDA(cudaStreamWaitEvent(stream_, slot->sent, 0));
    RETURN_IF_CUDA(cudaEventRecord(slot->begin, stream_));
    RETURN_IF_ERROR(forward_->run(slot->staging, stream_));
    RETURN_IF_ERROR(slot->samples.run(slot->staging, forward_.get(), stream_));
    return check_cuda(cudaEventRecord(slot->end, stream_), "a step");
}

bool CudaBackend::ready() const {
    if (!failed_.ok() || in_flight_ == 0) return true;
    return cudaSetDevice(device_) != cudaSuccess ||
           cudaEventQuery(oldest().end) != cudaErrorNotReady;
}

Status CudaBackend::collect(BatchOutput *output) {
    RETURN_IF_ERROR(failed_);
    if (in_flight_ == 0) {
        return error(BATCHLLM_ERROR_INTERNAL, "cuda backend: no batch is in flight");
    }
    failed_ = collect_checked(output);
    RETURN_IF_ERROR(failed_);
    --in_flight_;
    return {};
}

Status CudaBackend::collect_checked(BatchOutput *output) {
    RETURN_IF_CUDA(cudaSetDevice(device_));
    Slot &slot = oldest();
    RETURN_IF_CUDA(cudaEventSynchronize(slot.end));
    // The stream comes to `begin` when the batch before has ended: what they add up to counts no time
    // twice.
    float milliseconds = 0;
    RETURN_IF_CUDA(cudaEventElapsedTime(&milliseconds, slot.begin, slot.end));
    last_run_seconds_ = static_cast<double>(milliseconds) * 1e-3;
    slot.samples.take(output);
    return forward_->profile().collect();
}

} // namespace batchllm::cuda
