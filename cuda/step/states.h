// A step's layers with a state (delta nets of both kinds, Mamba-2 and short convolutions): the slots of their states, and which
// nodes of a batch start from which. Nodes go level by level (backend/state_levels.h).
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "backend/gpu/state_chunks.h"
#include "backend/gpu/step_buffers.h"
#include "device/staging.h"
#include "ranks/rank_group.h"
#include "recurrent/chunk.h"
#include "recurrent/delta.h"
#include "recurrent/state_space.h"
#include "step/input.h"
#include "step/state_items.h"
#include "step/weights.h"

namespace batchllm::cuda {

struct StepStateOptions {
    DType element;
    DType state = DType::f32; // of S, or bf16; short convolutions' are always in f32
    int32_t sms = 1;
    // Token by token, so that it does not matter how a prompt is cut into steps or where a prefix ends. Short
    // convolutions give the same bits in any way.
    bool reproducible = false;
    bool sm90 = false; // DeltaArguments'
    DeviceRank rank = {};
};

class StepStates {
  public:
    StepStates(const Model &model, const StepStateOptions &options);

    // Of a slot: all layers' states; 0: no layer has one.
    int64_t slot_bytes() const { return slot_bytes_; }
    Status take_slots(int64_t slots);
    Status allocate(const StepBuffers &buffers, StepInput *input);

    // Host: adds to the staging buffer what the layers need.
    Status stage(const TokenBatch &batch, StepInput *input, Staging *staging);
    // Which launches the staged step needs: of each level the sum of its Forms.
    enum Form : uint8_t {
        kOne = 1,     // items of one token
        kFew = 2,     // of several tokens, token by token
        kChunked = 4, // of several tokens, in chunks
        kStepped = kOne | kFew,
        kSeveral = kFew | kChunked,
    };
    const std::vector<uint8_t> &form() const { return form_; }

    // Of delta nets that decay by channel, where launch() has it: their gates, and what these are made of.
    struct ChannelGates {
        std::byte *of_z, *of_a; // [tokens, gate_rank] elements
        std::byte *z, *a;       // [tokens, values_size], [tokens, value_heads * key_dim]
    };
    ChannelGates channel_gates() const {
        return {of_gates_.data(), of_gates_.data() + of_gates_.bytes() / 2, z_.data(), a_.data()};
    }

    // Device: enqueues the layer. tokens: of the step, rounded up; projected: the product of its input matrix,
    // [tokens, qkv.rows]; out: [tokens, last_columns()] elements, of which the rows beyond the staged tokens mean
    // nothing. squares: [tokens, ranks] floats for ranks that share a norm.
    Status launch(size_t layer, const DeviceLayer &weights, const void *projected, void *out,
                  float *squares, int64_t tokens, const StepInput &input,
                  cudaStream_t stream) const;

  private:
    struct Launch { // what launch() was given
        size_t layer;
        const void *projected;
        void *out;
        float *squares;
        int64_t tokens;
        const StepInput &input;
        cudaStream_t stream;
    };
    DeltaArguments delta_arguments(const LinearAttention &linear, const DeviceLayer &weights,
                                   const Launch &at) const;
    // The layer's launches of all levels.
    Status launch_delta_net(DeltaArguments a, const Launch &at) const;
    Status launch_channel_net(const ChannelDeltaNet &net, const DeviceLayer &weights,
                              const Launch &at) const;
    Status launch_state_space(const Mamba2 &mamba, const DeviceLayer &weights,
                              const Launch &at) const;
    Result<SharedNorm> share_squares(const Mamba2 &mamba, const Launch &at) const;
    Status launch_convolution(const ShortConvolution &convolution, const DeviceLayer &weights,
                              const Launch &at) const;

    const Model &model_;
    StepStateOptions options_;
    int64_t slot_bytes_ = 0;
    std::vector<int64_t> begin_; // [layers] of their parts of a slot
    bool chunked_ = false;       // goes_in_chunks()
    // [slots][layers] { S, ring }; of a short convolution { ring }.
    DeviceMemory slots_;
    DeviceMemory mixed_, gates_, w_, p_; // ChunkArguments'
    DeviceMemory of_gates_, a_, z_;      // ChannelGates'

    // Of the staged step.
    StateItems items_;
    std::vector<uint8_t> form_; // [levels]
};

} // namespace batchllm::cuda
