// One device of the engine: its backend, its scheduler with the requests placed on it, and its
// batches in flight.
//
//     next_batch   builds a batch from its requests
//     forward      puts it in flight, behind the one that runs
//     sample       samples it, with the masks of constrained rows: at once or, if those masks
//                  depend on the previous batch, once that one has been collected and finished
//     collect      waits for the oldest batch; record() and output() then describe it
//     finish       advances the requests, once the engine has delivered the outputs
//
// If the backend takes one batch at a time, each batch is collected before the next one is built.
// If it takes two, a batch is built and submitted while the previous one runs.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "backend/backend.h"
#include "runtime/lane_adapters.h"
#include "runtime/lane_drafts.h"
#include "runtime/lane_pictures.h"
#include "schedule/scheduler.h"

namespace batchllm {

class Lane {
  public:
    // The backend determines pages, page_tokens, step_tokens and feeds of the options.
    // supply_threads: that read adapters, and as many that prepare pictures.
    Lane(int32_t device, std::unique_ptr<Backend> backend, SchedulerOptions options,
         const DraftOptions &drafts = {}, int32_t supply_threads = 1);
    Lane(const Lane &) = delete; // its scheduler refers to its drafts
    Lane &operator=(const Lane &) = delete;

    int32_t device() const { return device_; }
    const BackendInfo &info() const { return backend_->info(); }
    const Backend *backend() const { return backend_.get(); }
    LaneAdapters &adapters() { return adapters_; }
    const LaneAdapters &adapters() const { return adapters_; }
    LanePictures &pictures() { return pictures_; }
    const LanePictures &pictures() const { return pictures_; }
    LaneDrafts &drafts() { return drafts_; }
    Scheduler &scheduler() { return scheduler_; }
    const Scheduler &scheduler() const { return scheduler_; }
    int32_t in_flight() const { return scheduler_.in_flight(); }
    // Whether the device has failed or has run out of memory, so that the lane is no longer usable.
    // Other errors of backend calls do not make a lane lost.
    bool lost() const;

    // Whether another batch can be put in flight that would contain nearly all requests.
    bool takes_another() const;
    // Also loads the adapters and pictures that it needs. Empty, with nothing in flight: it waits for
    // one of them, or nothing is left to do.
    Result<const TokenBatch *> next_batch();
    bool waits_for_adapter() const { return scheduler_.adapters().blocked() >= 0; }
    bool waits_for_picture() const { return scheduler_.pictures().blocked() >= 0; }
    Status forward(const TokenBatch &batch);
    // masks: as for Backend::sample.
    Status sample(std::span<const TokenMask> masks);
    // Whether the newest batch in flight is not sampled yet.
    bool unsampled() const { return unsampled_; }

    bool ready() const { return backend_->ready(); }
    Status collect();
    const BatchRecord &record() const { return scheduler_.oldest(); }
    const BatchRecord &newest() const { return scheduler_.newest(); }
    const BatchOutput &output() const { return output_; }
    // Of the batch that was collected last.
    double batch_seconds() const { return backend_->last_run_seconds(); }
    void finish() { scheduler_.finish_step(); }

    double seconds() const { return seconds_; } // over all its batches
    double waited_for_masks() const { return waited_; }

    // The most tokens that its requests may still generate, as counted by will_generate().
    int64_t tokens_to_generate() const { return tokens_to_generate_; }
    void will_generate(int64_t tokens) { tokens_to_generate_ += tokens; } // fewer if negative

  private:
    Status note(Status status);

    int32_t device_;
    std::unique_ptr<Backend> backend_;
    LaneDrafts drafts_;
    Scheduler scheduler_;
    LaneAdapters adapters_;
    LanePictures pictures_;
    BatchOutput output_;
    bool unsampled_ = false;
    int32_t failed_ = BATCHLLM_OK; // error code of the backend
    double seconds_ = 0, waited_ = 0;
    int64_t tokens_to_generate_ = 0;
};

} // namespace batchllm
