// The CUDA backend behind backend.h: options -> weights, buffers and KV pages on one device; a batch ->
// samples and scores.
//
// compute_type: auto (the model's; bf16 for f32), bf16, f16, or f32 (slow, for checks). Options:
//   residual=f32|element  type of the residual stream
//   tuning=0|1            times cuBLASLt's candidates at each new shape instead of taking the first
//   attention=auto|sm80|sm90  the family of attention kernels; auto: the device's best
//   share_attention=0|1   0: no request reads a prefix together with others (for comparison)
//   profile=0|1           events between a step's parts
//   random_weights=0|1    made on the device; the model's tensors are not read (for benches)
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "base/thread_pool.h"
#include "forward.h"
#include "sampling.h"
#include "staging.h"

namespace batchllm::cuda {

class CudaBackend final : public SynchronousBackend {
  public:
    static Result<std::unique_ptr<CudaBackend>> create(const Model &model,
                                                       const BackendOptions &options);
    ~CudaBackend() override;

    const BackendInfo &info() const override { return info_; }
    double last_run_seconds() const override { return last_run_seconds_; }

    Forward &forward() { return *forward_; }
    cudaStream_t stream() const { return stream_; }
    double host_seconds() const { return host_seconds_; } // of all runs, before the device began

  private:
    Status compute(const TokenBatch &batch, BatchOutput *output) override;
    CudaBackend() = default;
    Status check(const TokenBatch &batch) const;
    Status run_checked(const TokenBatch &batch, BatchOutput *output);
    Status plan_samples(const TokenBatch &batch);
    bool on_device(const TokenBatch &batch, size_t at) const;
    void add_edits(const SampleInput &input, SampleTask *task);
    Status run_samples(const TokenBatch &batch, BatchOutput *output);
    Status sample_on_host(const TokenBatch &batch, int64_t first, int64_t begin, int64_t end,
                          BatchOutput *output);

    int device_ = 0;
    BackendInfo info_;
    Stream stream_;
    std::unique_ptr<Forward> forward_;
    std::unique_ptr<ThreadPool> pool_;
    Staging staging_;
    Status failed_; // the device's first error: said for ever
    double last_run_seconds_ = 0;
    double host_seconds_ = 0;

    // Of the current step. Logits rows in the order of their tokens.
    std::vector<int32_t> by_token_;     // [rows] their numbers
    std::vector<int32_t> wanted_;       // their tokens, each once
    std::vector<int32_t> wanted_of_;    // [rows, by_token_'s order] index into wanted_
    std::vector<int64_t> target_begin_; // [rows] into BatchOutput::target_logprobs
    std::vector<SampleTask> tasks_; // on the device; row: index into wanted_, until it is staged
    std::vector<LogitEdit> edits_;
    std::vector<int32_t> targets_;
    std::vector<int32_t> host_rows_; // places in by_token_ of those that the host samples
    int64_t staged_tasks_ = 0, staged_edits_ = 0, staged_targets_ = 0;
    DeviceMemory results_, target_logprobs_;
    PinnedMemory results_host_, target_logprobs_host_;
    PinnedMemory logits_host_; // [kHostRows, vocabulary] once the host must sample
};

} // namespace batchllm::cuda
