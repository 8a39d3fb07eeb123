// The layers with gated delta nets of a step: the slots of their states, and what of a batch depends on what.
// Nodes go level by level (backend/state_levels.h).
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "backend/step_buffers.h"
#include "device/staging.h"
#include "recurrent/chunk.h"
#include "recurrent/delta.h"
#include "recurrent/state_space.h"
#include "step/input.h"
#include "step/weights.h"

namespace batchllm::cuda {

struct DeltaOptions {
    DType element;
    DType state = DType::f32; // or bf16
    int32_t sms = 1;
    // Token by token, so that it does not matter how a prompt is cut into steps or where a prefix ends.
    bool reproducible = false;
    bool sm90 = false; // DeltaArguments'
};

// Whether prompts go in chunks: all layers' heads have kernels for them.
bool goes_in_chunks(const Model &model, DType element, bool reproducible);

class StepDelta {
  public:
    StepDelta(const Model &model, const DeltaOptions &options);

    // Of a slot: S and ring of all layers; 0: no layer has a delta net.
    int64_t slot_bytes() const { return slot_bytes_; }
    Status take_slots(int64_t slots);
    Status allocate(const StepBuffers &buffers, StepInput *input);

    // Host: adds to the staging buffer what the layers need.
    Status stage(const TokenBatch &batch, StepInput *input, Staging *staging);
    // Which launches the staged step needs: of each level the sum of its Forms.
    enum Form : uint8_t { kStepped = 1, kSeveral = 2, kChunked = 4 };
    const std::vector<uint8_t> &form() const { return form_; }

    // Device: enqueues the layer. tokens: of the step, rounded up; projected: the product of its input matrix,
    // [tokens, qkv.rows]; out: [tokens, values_size] elements, of the staged tokens alone.
    Status launch(size_t layer, const DeviceLayer &weights, const void *projected, void *out,
                  int64_t tokens, const StepInput &input, cudaStream_t stream) const;

  private:
    void read_nodes(const TokenBatch &batch);
    void add_level(int32_t begin);
    // The layer's launches of all levels.
    Status launch_delta_net(DeltaArguments a, int64_t tokens, const StepInput &input,
                            cudaStream_t stream) const;
    Status launch_state_space(size_t layer, const DeviceLayer &weights, DeltaArguments a,
                              int64_t tokens, const StepInput &input, cudaStream_t stream) const;
    DeltaArguments arguments(size_t layer, const DeviceLayer &weights,
                             const StepInput &input) const;

    const Model &model_;
    DeltaOptions options_;
    int64_t slot_bytes_ = 0;
    std::vector<int64_t> begin_;         // [layers] of their parts of a slot
    bool chunked_ = false;               // goes_in_chunks()
    DeviceMemory slots_;                 // [slots][layers] { S, ring }
    DeviceMemory mixed_, gates_, w_, p_; // ChunkArguments'

    // Of the staged step.
    std::vector<DeltaItem> items_; // level by level
    std::vector<DeltaLevel> levels_;
    std::vector<DeltaChunk> chunks_; // the same
    std::vector<uint8_t> form_;      // [levels]
};

} // namespace batchllm::cuda
