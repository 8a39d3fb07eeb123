// What a step needs: weights, buffers, keys and values, states, the staged input. It runs nothing by itself: what does refers
// to it (forward.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/profile.h"
#include "step/activations.h"
#include "step/adapters.h"
#include "step/attention.h"
#include "step/experts.h"
#include "step/forward_options.h"
#include "step/input.h"
#include "step/kv_pool.h"
#include "step/pictures.h"
#include "step/rope_tables.h"
#include "step/states.h"
#include "step/weights.h"

namespace batchllm::cuda {

// The staged step. Numbers of tokens are rounded up (padded_rows): the rows beyond the batch are computed from token 0 or
// from what is left of another step, write no keys, and are never read. Steps of one rounded shape are the same launches.
struct StagedStep {
    int64_t tokens = 0, wanted = 0; // rounded up
    bool gather = false;            // not all tokens are wanted
    int64_t sample_rows = 0;
    int64_t wanted_tokens = 0; // not rounded
};

// Rows of the residual stream that a launch works on: all tokens, or the wanted ones.
struct StepRows {
    void *residual = nullptr; // Activations::residual or last
    int64_t count = 0;
    const int32_t *wanted = nullptr; // their tokens; null: all, in order
};

struct StepParts {
    StepParts(const Model &model, const ForwardOptions &options);

    // All but the weights, which are loaded. form: step_form(), with what is in e4m3.
    Status allocate(const StepForm &form);

    // Host: adds the batch to the staging buffer. wanted: tokens whose logits are wanted, ascending. rows: of logits.
    Status stage(const TokenBatch &batch, std::span<const int32_t> wanted, int64_t rows,
                 Staging *staging);
    // Memory for the staged step, where it needs more than any before it. True: something has moved.
    Result<bool> reserve(cudaStream_t stream);

    // As the staged step has it.
    const DeviceLayer &layer(size_t index) const {
        const std::vector<DeviceLayer> *merged = adapters.merged();
        return merged != nullptr ? (*merged)[index] : weights.layers[index];
    }
    DType element() const { return options.element; }
    const SampleResult *samples() const { return activations.samples.as<SampleResult>(); }
    // Whether nothing but additions needs a row of the residual stream where another rank owns it (ranks/peers.h), and rows
    // of what ends a sublayer can be made apart.
    bool can_own_rows() const;
    // SharedAsk's: places and types of what an owner writes, and how each of its norms scales that.
    std::vector<int64_t> form_of_rows(const StepBuffers &buffers) const;
    StepRows all_rows() const { return {activations.residual.data(), staged.tokens, nullptr}; }
    // Those that go on after the last layer's mixer.
    StepRows wanted_rows() const {
        if (!staged.gather) return all_rows();
        return {activations.last.data(), staged.wanted, input.at<int32_t>(kWanted)};
    }

    const Model &model;
    ForwardOptions options;
    int64_t rows; // that the buffers hold: step_tokens, padded
    DeviceWeights weights;
    Activations activations;
    RopeTables ropes;
    KvPool kv;
    StepAttention attention;
    StepStates states;
    StepExperts experts;
    StepAdapters adapters;
    StepPictures pictures;
    StepInput input;
    Profile profile;
    StagedStep staged;
    // Of ranks that access each other's memory: [rows, hidden] of the residual's type. Null: they do not.
    PeerBuffers *peers = nullptr;
};

} // namespace batchllm::cuda
