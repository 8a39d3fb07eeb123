// The CUDA backend behind backend.h: options -> weights, buffers and KV pages on one device; a batch ->
// samples and scores.
//
// A batch in flight has a slot: its input in pinned memory, copied by a stream of its own while the
// batch before is computed, and its results in memory that the device writes through the bus. Once every
// shape of step has been seen nothing is allocated and nothing waits for the device but collect().
//
// compute_type: auto (the model's; bf16 for f32), bf16, f16, or f32 (slow, for checks). Options:
//   overlap=0|1           0: one batch in flight
//   graphs=0|1            0: every step is launched kernel by kernel
//   tuning=0|1            0: cuBLASLt's first candidate is taken; 1: its fastest, timed at new shapes
//   tuning_cache=PATH     where the choices are kept; none: nowhere. By default in the user's cache
//   residual=f32|element  type of the residual stream
//   attention=auto|sm80|sm90  the family of attention kernels; auto: the device's best
//   share_attention=0|1   0: no request reads a prefix together with others (for comparison)
//   fused_attention=0|1   0: prefixes, decode and prefill in launches of their own (for comparison)
//   quantize=none|stored|fp8  the layers' matrices in fp8: none; those that the checkpoint has so (the
//                         default); or all of a 16-bit checkpoint
//   kv_type=auto|fp8      keys and values in the compute type, or in e4m3 with scales by head
//   fast_accumulation=0|1 sums of fp8 products in the tensor cores' own precision
//   gated_product=0|1     0: gate and up are cuBLASLt's product, and the activation is a launch after it
//   state_slots=N         of a model with states (backend/backend.h). By default what memory allows beside
//                         keys and values
//   state_type=f32|bf16   in which states are kept between steps
//   profile=0|1           events between a step's parts; no overlap, no graphs
//   random_weights=0|1|skewed  made on the device; the model's tensors are not read (for benches).
//                         skewed: half of the turns go to an eighth of a layer's experts
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
    double last_run_seconds() const override { return last_run_seconds_; } // on the device
    double last_wait_seconds() const override { return last_wait_seconds_; }

    Forward &step() { return *forward_; }
    cudaStream_t stream() const { return stream_; }
    double host_seconds() const { return host_seconds_; } // of all batches, before their launches

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
    Slot *last_ = nullptr; // of the batch that went forward last
    Status failed_;        // the device's first error: said for ever
    double last_run_seconds_ = 0;
    double last_wait_seconds_ = 0;
    double host_seconds_ = 0;
};

} // namespace batchllm::cuda
