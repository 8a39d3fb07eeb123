// A token batch's context nodes -> the attention of every layer of the step.
//
// Staged once a step: a worklist for each window that layers have (attention/worklist.h), which all
// layers with that window reuse; in f32, whose attention is plain, the nodes themselves.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/family.h"
#include "attention/plain.h"
#include "backend/backend.h"
#include "device/staging.h"
#include "model/model.h"
#include "step/input.h"

namespace batchllm::cuda {

struct AttentionOptions {
    bool share = true; // false: every query reads its prefix for itself
    bool fused = true; // false: one launch a kind of item
    int32_t sms = 0;
    const AttentionFamily *family = nullptr; // of the device
};

// What a layer's attention reads and writes, in elements.
struct AttentionTensors {
    const void *q;  // [tokens, (heads + 2 kv_heads) * padded], the queries first
    void *out;      // [tokens, heads * padded]
    const void *kv; // the layer's pages
};

class StepAttention {
  public:
    // config: kept.
    StepAttention(const ModelConfig &config, DType element, const AttentionOptions &options);

    // Memory for steps of up to `rows` tokens.
    Status allocate(int64_t rows, StepInput *input);

    // Host: adds to the staging buffer what attention needs besides kPages and kPositions.
    Status stage(const TokenBatch &batch, StepInput *input, Staging *staging);

    // Device: enqueues the layer's attention. Fused, it is one launch, of arguments().
    Status launch(size_t layer, const AttentionTensors &tensors, const StepInput &input,
                  cudaStream_t stream) const;
    AttentionArguments arguments(size_t layer, const AttentionTensors &tensors,
                                 const StepInput &input) const;

    // The first layer's.
    const Worklist &worklist() const { return windows_[0].list; }

  private:
    // The attention work of the layers with one window.
    struct Window {
        int32_t size = 0;    // positions; 0: all
        size_t sections = 0; // the first of its four
        Worklist list;
        // Not fused: launches, each with some of the items.
        struct Launch {
            int32_t begin, matrix_items, stream_items;
        };
        std::vector<Launch> launches;
    };

    const Window &window_of(size_t layer) const;
    Status stage_plain(const TokenBatch &batch, StepInput *input, Staging *staging);
    Status stage_worklist(Window *window, StepInput *input, Staging *staging);
    void split_by_kind(Window *window) const;
    Status launch_plain(size_t layer, const AttentionTensors &tensors, const StepInput &input,
                        cudaStream_t stream) const;

    const ModelConfig &config_;
    DType element_;
    AttentionOptions options_;
    int32_t padded_dim_;
    int64_t q_stride_, out_stride_; // of AttentionTensors
    float scale_;
    int64_t rows_ = 0;         // that there is memory for
    int64_t slots_ = 0;        // partial rows
    DeviceMemory partial_out_; // [slots, heads, padded] f32
    DeviceMemory partial_lse_; // [slots, heads] base 2
    DeviceMemory arrivals_;    // [rows, kv_heads], then queues [4]: zero between launches

    // Of the staged step.
    int32_t tokens_ = 0; // as the batch has them, not padded
    std::vector<Window> windows_;
    std::vector<AttentionNode> nodes_;
    std::vector<PlainNode> plain_nodes_;
    std::vector<int32_t> node_of_; // [tokens]
};

} // namespace batchllm::cuda
