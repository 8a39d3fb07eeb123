// The CUDA backend behind backend.h: options -> weights, buffers and KV pages on one device; a batch ->
// samples and scores.
//
// A batch in flight has a slot: its input in pinned memory, which a separate stream copies while
// the previous batch is computed, and its results in host memory that the device writes over the
// bus. Once every step shape has been seen, nothing is allocated, and only collect() waits for the
// device.
//
// compute_type: auto (the model's; bf16 for f32), bf16, f16, or f32 (slow, for checks). Options:
//   overlap=0|1           0: one batch in flight
//   graphs=0|1            0: every step is launched kernel by kernel
//   tuning=0|1            0: uses cuBLASLt's first candidate; 1: its fastest, timed for new shapes
//   tuning_cache=PATH     where the choices are stored; none: nowhere. By default in the user's
//                         cache
//   residual=f32|element  type of the residual stream
//   attention=auto|sm80|sm90  the family of attention kernels; auto: the device's best
//   share_attention=0|1   0: no request reads a prefix together with others (for comparison)
//   fused_attention=0|1   0: prefixes, decode and prefill in separate launches (for comparison)
//   quantize=none|stored|fp8  the layers' matrices in fp8: none; those stored so in the checkpoint
//                             (the default); or all of a 16-bit checkpoint
//   kv_type=auto|fp8      keys and values in the compute type, or in e4m3 with a scale per head
//   fast_accumulation=0|1 sums of fp8 products in the tensor cores' own precision
//   gated_product=0|1     0: cuBLASLt multiplies gate and up, and the activation is a separate
//                         launch
//   state_slots=N         for a model with states (backend/backend.h). By default what memory
//                         allows beside keys and values
//   state_type=f32|bf16   the type of states between steps
//   profile=0|1           records events between a step's parts; no overlap, no graphs
//   random_weights=0|1|skewed  made on the device; the model's tensors are not read (for benches).
//                              skewed: half of the turns go to an eighth of a layer's experts
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
    static Result<std::unique_ptr<CudaBackend>> create(const Model &model,
                                                       const BackendOptions &options);
    ~CudaBackend() override;

    const BackendInfo &info() const override { return info_; }
    Status forward(const TokenBatch &batch) override;
    Status sample(std::span<const TokenMask> masks) override;
    Status collect(BatchOutput *output) override;
    bool ready() const override;
    bool feeds(const SampleInput &input) const override;
    Result<int64_t> adapter_bytes(const Adapter &adapter) const override {
        return forward_->parts().adapters.bytes(adapter);
    }
    Result<std::shared_ptr<const PackedAdapter>>
    pack_adapter(std::shared_ptr<const Adapter> adapter) const override;
    Status load_adapter(int32_t slot, std::shared_ptr<const PackedAdapter> packed) override;
    void unload_adapter(int32_t slot) override;
    double last_run_seconds() const override { return last_run_seconds_; } // on the device
    double last_wait_seconds() const override { return last_wait_seconds_; }

    Forward &step() { return *forward_; }
    cudaStream_t stream() const { return stream_; }
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
    Slot *last_ = nullptr; // the slot of the last batch that was launched
    Status failed_;        // the device's first error, returned from then on
    double last_run_seconds_ = 0;
    double last_wait_seconds_ = 0;
    double host_seconds_ = 0;
};

} // namespace batchllm::cuda
