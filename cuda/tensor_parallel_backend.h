// Several devices that work as one (docs/lab/tensor-parallel.md): a backend for each, on its part of the model, which all get every
// batch. Each has a thread while a batch is launched.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "backend/gpu/rank_choice.h"
#include "cuda_backend.h"
#include "ranks/rank_group.h"

namespace batchllm::cuda {

// For tensor_parallel=auto, by the memory that is free on the first of the devices; none: of all that there are.
Result<RankChoice> choose_ranks_here(const Model &model, const BackendOptions &options,
                                     const std::vector<int32_t> &devices);

class TensorParallelBackend final : public Backend {
  public:
    // options.devices names as many devices as ranks, all of one kind.
    static Result<std::unique_ptr<TensorParallelBackend>>
    create(const Model &model, const BackendOptions &options, int32_t ranks);

    ~TensorParallelBackend() override;
    const BackendInfo &info() const override { return info_; }
    Status forward(const TokenBatch &batch) override;
    Status sample(std::span<const TokenMask> masks) override;
    // Waits for all ranks; if one fails, the others' exchanges are ended.
    Status collect(BatchOutput *output) override;
    bool ready() const override;
    bool feeds(const SampleInput &input) const override { return first().feeds(input); }
    // Of the device that has most of it.
    Result<int64_t> adapter_bytes(const Adapter &adapter) const override;
    Result<std::shared_ptr<const PackedAdapter>>
    pack_adapter(std::shared_ptr<const Adapter> adapter) const override;
    Status load_adapter(int32_t slot, std::shared_ptr<const PackedAdapter> packed) override;
    void unload_adapter(int32_t slot) override;
    AdapterUse adapter_use() const override; // one device's
    // Each rank has the tower, and computes all pictures.
    Status load_pictures(std::span<const PictureLoad> pictures) override;
    void unload_picture(int32_t slot) override;
    double last_run_seconds() const override { return first().last_run_seconds(); }
    double last_wait_seconds() const override { return first().last_wait_seconds(); }

    int32_t ranks() const { return group_->ranks(); }
    CudaBackend &backend_of(int32_t rank) const {
        return *ranks_[static_cast<size_t>(rank)].backend;
    }
    Status run_on_all(const std::function<Status(CudaBackend &)> &task) const;

  private:
    struct OfRank { // the backend borrows the part
        std::unique_ptr<Model> part;
        std::unique_ptr<CudaBackend> backend;
    };

    explicit TensorParallelBackend(const Model &model) : model_(model) {}
    // peers: RankGroup's.
    Status make(const BackendOptions &options, const std::vector<int> &devices, bool peers);
    void join_infos();
    CudaBackend &first() const { return *ranks_.front().backend; }

    const Model &model_;
    BackendInfo info_;
    std::unique_ptr<RankGroup> group_;
    std::vector<OfRank> ranks_;
};

} // namespace batchllm::cuda
