// The CPU backend, behind backend.h: options -> buffers and pages; a batch -> samples and scores.
//
// With several ranks, each has a part of the model, threads and pages of its own, and runs the same batches. Their logits
// are put together, and each rank samples some of the rows.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/batch_rows.h"
#include "backend/cpu/forward.h"
#include "backend/cpu/ranks.h"

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
    void unload_adapter(int32_t slot) override;
    Status load_pictures(std::span<const PictureLoad> pictures) override;
    void unload_picture(int32_t slot) override { tower_->unload(slot); }

    PartSeconds &seconds() { return ranks_[0].forward->seconds(); } // of the first rank

  private:
    struct OfRank {
        std::unique_ptr<Model> part; // null: the whole model
        std::unique_ptr<ThreadPool> pool;
        std::unique_ptr<Forward> forward;
        std::vector<std::vector<float>> copies; // [threads] for rows that share their logits
    };

    explicit CpuBackend(const Model &model) : model_(model) {}
    Status run_ranks(const std::function<Status(OfRank &, Rank)> &task);
    Status sample_rows(OfRank *of, Rank rank, std::span<const TokenMask> masks);
    void choose(OfRank *of, std::span<const TokenMask> masks, int64_t first, int64_t begin,
                int64_t end);
    void embed();

    const Model &model_;
    std::unique_ptr<Exchange> exchange_; // null: one rank
    std::vector<OfRank> ranks_;
    std::unique_ptr<CpuTower> tower_; // of all ranks; null: the model has none
    BackendInfo info_;
    double last_run_seconds_ = 0;

    // For the current step.
    std::vector<OutputRow> outputs_; // TokenBatch::outputs
    BatchRows rows_;
    BatchOutput output_;
    Buffer logits_; // [kHeadRows, vocabulary]
};

} // namespace batchllm::cpu
