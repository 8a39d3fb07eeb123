// The CUDA backend behind backend.h: options -> weights, buffers and KV pages on one device; a batch ->
// samples and scores.
//
// A batch in flight has a slot: its input in pinned memory, which a separate stream copies while
// the previous batch is computed, and its results in host memory that the device writes over the
// bus. Once every step shape has been seen, nothing is allocated, and only collect() waits for the
// device.
//
// Its options: docs/backends.md. For benchmarks also share_attention=0 (no request reads a prefix together with
// others) and fused_attention=0 (prefixes, decode and prefill in separate launches).
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "backend/backend.h"
#include "device/staging.h"
#include "step/forward.h"
#include "step/samples.h"

namespace batchllm::cuda {

class CudaBackend final : public Backend {
  public:
    // rank: of a part of a model; all ranks create theirs at the same time. head_parts: of all ranks.
    static Result<std::unique_ptr<CudaBackend>> create(const Model &model,
                                                       const BackendOptions &options,
                                                       DeviceRank rank = {},
                                                       std::vector<HeadPart> head_parts = {});
    ~CudaBackend() override;

    const BackendInfo &info() const override { return info_; }
    Status forward(const TokenBatch &batch) override;
    Status sample(std::span<const TokenMask> masks) override;
    Status collect(BatchOutput *output) override;
    bool ready() const override { return state() != cudaErrorNotReady; }
    // Of the oldest batch in flight, or of the device: cudaErrorNotReady, cudaSuccess or an error.
    cudaError_t state() const;
    bool feeds(const SampleInput &input) const override;
    Result<int64_t> adapter_bytes(const Adapter &adapter) const override {
        return forward_->parts().adapters.bytes(adapter);
    }
    Result<std::shared_ptr<const PackedAdapter>>
    pack_adapter(std::shared_ptr<const Adapter> adapter) const override;
    Status load_adapter(int32_t slot, std::shared_ptr<const PackedAdapter> packed) override;
    void unload_adapter(int32_t slot) override;
    AdapterUse adapter_use() const override { return forward_->parts().adapters.use(); }
    Status load_pictures(std::span<const PictureLoad> pictures) override;
    void unload_picture(int32_t slot) override { forward_->parts().pictures.release(slot); }
    double last_run_seconds() const override { return last_run_seconds_; } // on the device
    double last_wait_seconds() const override { return last_wait_seconds_; }

    Forward &step() { return *forward_; }
    cudaStream_t stream() const { return stream_; }
    int device() const { return device_; }
    // Its samples and scores of a batch come with the other one's.
    void answer_with(CudaBackend *other) {
        for (size_t i = 0; i < slots_.size(); ++i) {
            slots_[i].samples.answer_to(&other->slots_[i].samples);
        }
    }
    void limit_picture_patches(int64_t most) {
        if (StepTower *tower = forward_->tower()) tower->limit_patches(most);
        info_.picture_patches = std::min(info_.picture_patches, most);
    }
    double host_seconds() const { return host_seconds_; } // for all batches, before their launches

  private:
    static constexpr int kSlots = step_batches;
    struct Slot {
        Staging staging;
        StepSamples samples;
        Event sent, begin, forwarded, masked, end;
    };

    CudaBackend() = default;
    Status take_memory(const BackendOptions &options, int64_t state_slots);
    Status take_pages();
    int64_t beside_adapters() const;
    Status take_adapter_room(int64_t wanted);
    Status forward_checked(const TokenBatch &batch, Slot *slot);
    Status sample_checked(std::span<const TokenMask> masks);
    Status collect_checked(BatchOutput *output);
    Slot &oldest() { return slots_[static_cast<size_t>((next_ + kSlots - in_flight_) % kSlots)]; }
    const Slot &oldest() const { return const_cast<CudaBackend *>(this)->oldest(); }

    int device_ = 0;
    BackendInfo info_;
    Stream stream_, copies_;
    std::unique_ptr<Forward> forward_;
    std::array<Slot, kSlots> slots_;
    int next_ = 0, in_flight_ = 0;
    bool begun_ = false;   // the next batch's `begin` has been recorded
    Slot *last_ = nullptr; // the slot of the last batch that was launched
    Status failed_;        // the device's first error, returned from then on
    double last_run_seconds_ = 0;
    double last_wait_seconds_ = 0;
    double host_seconds_ = 0;
};

} // namespace batchllm::cuda
