#include "runtime/lane.h"

namespace batchllm {
namespace {

// If more than one in this many running requests would miss the next batch because their newest
// tokens are not known yet, the lane waits for the batch in flight, since a small batch reads all
// weights for only a few tokens.
constexpr int64_t held_back_one_in = 8;

SchedulerOptions of_backend(SchedulerOptions options, const Backend *backend, LaneDrafts *drafts) {
    const BackendInfo &info = backend->info();
    options.pages = info.pages;
    options.page_tokens = info.page_tokens;
    options.step_tokens = info.step_tokens;
    options.kv_windows = info.kv_windows;
    options.single_tokens = info.reproducible;
    options.state_slots = info.state_slots;
    options.adapter_slots = info.adapter_slots;
    options.adapter_bytes = info.adapter_bytes;
    options.picture_slots = info.picture_slots;
    options.picture_tokens = info.picture_tokens;
    if (info.batches_in_flight > 1) {
        options.feeds = [backend](const SampleInput &sample) { return backend->feeds(sample); };
    }
    if (drafts->on()) {
        options.propose = [drafts](std::span<Request *const> decoding) {
            return drafts->propose(decoding);
        };
    }
    return options;
}

} // namespace

Lane::Lane(int32_t device, std::unique_ptr<Backend> backend, SchedulerOptions options,
           const DraftOptions &drafts, int32_t supply_threads)
    : device_(device), backend_(std::move(backend)), drafts_(drafts, backend_->info()),
      scheduler_(of_backend(std::move(options), backend_.get(), &drafts_)),
      adapters_(backend_.get(), &scheduler_.adapters(), supply_threads),
      pictures_(backend_.get(), &scheduler_.pictures(), supply_threads) {}

Result<const TokenBatch *> Lane::next_batch() {
    const TokenBatch &batch = scheduler_.next_step();
    if (waits_for_adapter()) adapters_.hurry(scheduler_.adapters().blocked());
    if (waits_for_picture()) pictures_.hurry(scheduler_.pictures().blocked());
    RETURN_IF_ERROR(note(adapters_.load()));
    RETURN_IF_ERROR(note(pictures_.load()));
    return &batch;
}

bool Lane::takes_another() const {
    if (in_flight() == 0) return true;
    if (unsampled_ || scheduler_.proposes()) return false;
    return in_flight() < backend_->info().batches_in_flight &&
           scheduler_.held_back() * held_back_one_in <= scheduler_.running();
}

bool Lane::lost() const {
    return failed_ == BATCHLLM_ERROR_DEVICE || failed_ == BATCHLLM_ERROR_OUT_OF_MEMORY;
}

Status Lane::note(Status status) {
    failed_ = status.code();
    return status;
}

Status Lane::forward(const TokenBatch &batch) {
    RETURN_IF_ERROR(note(backend_->forward(batch)));
    unsampled_ = true;
    return {};
}

Status Lane::sample(std::span<const TokenMask> masks) {
    unsampled_ = false;
    return note(backend_->sample(masks));
}

Status Lane::collect() {
    RETURN_IF_ERROR(note(backend_->collect(&output_)));
    seconds_ += backend_->last_run_seconds();
    waited_ += backend_->last_wait_seconds();
    return {};
}

} // namespace batchllm
