// The CPU backend, behind backend.h: options -> buffers and pages; a batch -> samples and scores.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/batch_rows.h"
#include "backend/cpu/forward.h"

namespace batchllm::cpu {

class CpuBackend final : public Backend {
  public:
    static Result<std::unique_ptr<CpuBackend>> create(const Model &model,
                                                      const BackendOptions &options);

    const BackendInfo &info() const override { return info_; }
    Status forward(const TokenBatch &batch) override;
    Status sample(std::span<const TokenMask> masks) override;
    Status collect(BatchOutput *output) override;
    double last_run_seconds() const override { return last_run_seconds_; }
    Result<int64_t> adapter_bytes(const Adapter &adapter) const override;
    Result<std::shared_ptr<const PackedAdapter>>
    pack_adapter(std::shared_ptr<const Adapter> adapter) const override;
    Status load_adapter(int32_t slot, std::shared_ptr<const PackedAdapter> packed) override;
    void unload_adapter(int32_t slot) override { forward_->set_adapter(slot, nullptr); }
    Status load_pictures(std::span<const PictureLoad> pictures) override;
    void unload_picture(int32_t slot) override { tower_->unload(slot); }

    PartSeconds &seconds() { return forward_->seconds(); }

  private:
    CpuBackend() = default;
    void choose(std::span<const TokenMask> masks, int64_t first, int64_t count);
    void embed();

    std::unique_ptr<ThreadPool> pool_;
    std::unique_ptr<CpuTower> tower_; // null: the model has none
    std::unique_ptr<Forward> forward_;
    BackendInfo info_;
    double last_run_seconds_ = 0;

    // For the current step.
    std::vector<OutputRow> outputs_; // TokenBatch::outputs
    BatchRows rows_;
    BatchOutput output_;
    Buffer logits_;                          // [kHeadRows, vocabulary]
    std::vector<std::vector<float>> copies_; // [threads] for rows that share their logits
};

} // namespace batchllm::cpu
