// The CPU backend behind backend.h: options -> buffers and pages; a batch -> samples and scores.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/forward.h"

namespace batchllm::cpu {

class CpuBackend final : public SynchronousBackend {
  public:
    static Result<std::unique_ptr<CpuBackend>> create(const Model &model,
                                                      const BackendOptions &options);

    const BackendInfo &info() const override { return info_; }
    double last_run_seconds() const override { return last_run_seconds_; }

    PartSeconds &seconds() { return forward_->seconds(); }

  private:
    Status compute(const TokenBatch &batch, BatchOutput *output) override;
    CpuBackend() = default;
    Status check(const TokenBatch &batch) const;
    void choose(const TokenBatch &batch, int64_t first, int64_t count, BatchOutput *output);

    std::unique_ptr<ThreadPool> pool_;
    std::unique_ptr<Forward> forward_;
    BackendInfo info_;
    double last_run_seconds_ = 0;

    // Of the current step: the tokens whose logits are wanted, and for each the rows of
    // TokenBatch::logits that want them, by_token_[begin_[i], begin_[i + 1]).
    std::vector<int32_t> wanted_;
    std::vector<int32_t> by_token_;
    std::vector<int32_t> begin_;
    std::vector<int64_t> target_begin_;      // [logits] into BatchOutput::target_logprobs
    Buffer logits_;                          // [kLogitsRows, vocabulary]
    std::vector<std::vector<float>> copies_; // [threads] for rows that share their logits
};

} // namespace batchllm::cpu
