// Pictures in steps: where the outputs of loaded pictures are on the device, and which tokens of a step stand for them.
//
// The memory is one array of places, each with all parts of one token. A picture has any places that are free, so that none
// are lost between pictures. Places are written and read in the order of one stream: those of a picture that has been
// unloaded may be given to another at once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "device/device.h"
#include "step/input.h"
#include "tower/rows.h"

namespace batchllm::cuda {

class StepPictures {
  public:
    static constexpr int32_t kSlots = 1024;

    // type: of the residual stream.
    Status allocate(const Model &model, DType type, int64_t tokens);
    bool on() const { return outputs_.data != nullptr; }
    int64_t most_tokens() const { return most_tokens_; }

    // Gives an empty slot places for a picture's tokens.
    Status take(int32_t slot, int32_t tokens);
    void release(int32_t slot);
    int32_t place(int32_t slot, int32_t token) const {
        return slots_[static_cast<size_t>(slot)][static_cast<size_t>(token)];
    }
    const PictureOutputs &outputs() const { return outputs_; }

    // Host: adds the step's tokens to the staging buffer.
    Status stage(const TokenBatch &batch, StepInput *input, Staging *staging);
    // Tokens of the staged step that stand for pictures.
    int32_t staged() const { return staged_; }
    // Device: in place of embeddings; and what the tower adds behind a layer, if anything.
    Status embed(const StepInput &input, void *residual, cudaStream_t stream) const;
    bool adds_behind(size_t layer) const {
        return staged_ > 0 && static_cast<int64_t>(layer) + 1 < outputs_.parts;
    }
    Status add_behind(size_t layer, const StepInput &input, void *residual,
                      cudaStream_t stream) const;

  private:
    DeviceMemory memory_; // [most_tokens_, parts, hidden]
    PictureOutputs outputs_{};
    int64_t most_tokens_ = 0;
    std::vector<int32_t> free_;
    std::vector<std::vector<int32_t>> slots_; // places of each; none: it is empty
    int32_t staged_ = 0;
};

} // namespace batchllm::cuda
