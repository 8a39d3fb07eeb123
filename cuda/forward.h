// One token batch through the model on the device, up to the logits of the tokens that want them.
//
// The residual stream is added to by the products themselves (y += x W^T), so that a layer is: norm,
// QKV, rope and KV write, attention, O, norm, gate and up, SwiGLU, down. After the last layer's
// attention only the wanted tokens go on.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "attention_plain.h"
#include "attention_worklist.h"
#include "backend/backend.h"
#include "linear.h"
#include "profile.h"
#include "staging.h"
#include "weights.h"

namespace batchllm::cuda {

struct ForwardOptions {
    DType element = DType::bf16;
    DType residual = DType::bf16; // element's type or f32
    int64_t step_tokens = 0;
    bool tune = false;
    bool share_attention = true;
    bool random_weights = false;
    bool profile = false;
    uint64_t seed = 0;
    int32_t threads = 0;
    int32_t sms = 0;
};

class Forward {
  public:
    static Result<std::unique_ptr<Forward>> create(const Model &model,
                                                   const ForwardOptions &options);

    int64_t page_bytes() const; // all layers, keys and values
    Status take_pages(int64_t pages);

    // Host: adds the batch to the staging buffer. wanted: tokens whose logits are wanted, ascending.
    Status stage(const TokenBatch &batch, std::span<const int32_t> wanted, Staging *staging);
    // Device: enqueues everything up to the last layer's result. The staged batch has been sent.
    Status run(const Staging &staging, cudaStream_t stream);
    // Logits of wanted tokens [first, first + count), first a multiple of logits_rows(), count at most
    // logits_rows(): f32 at logits(), logits_stride() apart. After run.
    Status compute_logits(int64_t first, int64_t count, cudaStream_t stream);
    int64_t logits_rows() const { return logits_rows_; }
    int64_t logits_stride() const { return weights_.lm_head.rows; }
    float *logits() const { return logits_.as<float>(); }

    // The linear layers alone, on whatever the buffers hold: for measuring their rate.
    Status run_linear(int64_t tokens, int64_t wanted, cudaStream_t stream);

    Profile &profile() { return profile_; }
    const Worklist &worklist() const { return windows_[0].list; }

  private:
    Forward(const Model &model, const ForwardOptions &options);
    Status allocate();
    Status layer(size_t index, const Staging &staging, cudaStream_t stream);
    Status attention(size_t index, const Staging &staging, cudaStream_t stream);
    Status feed_forward(const DeviceLayer &weights, void *residual, int64_t rows,
                        cudaStream_t stream);
    Status norm(const void *residual, const int32_t *rows, const float *weight, int64_t count,
                cudaStream_t stream);

    // The attention work of the layers with one window, and where it is staged.
    struct Window {
        int32_t size = 0; // positions; 0: all
        Worklist list;
        int64_t items = 0, rows = 0, partials = 0, merged = 0;
    };

    const ModelConfig &config_;
    ForwardOptions options_;
    int32_t padded_dim_;
    int64_t qkv_rows_;
    DeviceWeights weights_;
    std::unique_ptr<Linear> linear_;
    Profile profile_;

    int64_t rows_ = 0; // that the buffers hold: step_tokens, padded
    int64_t logits_rows_ = 0;
    int64_t slots_ = 0; // partial rows of attention
    int64_t pages_ = 0;
    DeviceMemory frequencies_; // [head_dim / 2] f32
    DeviceMemory residual_;    // [rows, hidden] of the residual's type
    DeviceMemory last_;        // [rows, hidden] the same, of the wanted tokens
    DeviceMemory normed_;      // [rows, hidden] elements
    DeviceMemory qkv_;         // [rows, qkv_rows]
    DeviceMemory attended_;    // [rows, heads * padded]
    DeviceMemory gate_up_;     // [rows, 2 intermediate]
    DeviceMemory activated_;   // [rows, intermediate]
    DeviceMemory rope_table_;  // [rows, head_dim / 2] cos, sin
    DeviceMemory logits_;      // [logits_rows, padded vocabulary] f32
    DeviceMemory partial_out_; // [slots, heads, padded] f32
    DeviceMemory partial_lse_; // [slots, heads] base 2
    DeviceMemory arrivals_;    // [rows, kv_heads], then queues [4]: zero between launches
    DeviceMemory kv_;          // [layers][pages]...

    // Of the staged step.
    int64_t tokens_ = 0, wanted_count_ = 0;
    int64_t token_ids_ = 0, positions_ = 0, kv_slots_ = 0, page_numbers_ = 0, wanted_ = 0;
    int64_t nodes_ = 0, node_of_ = 0; // f32 alone
    std::vector<Window> windows_;
    std::vector<AttentionNode> attention_nodes_;
};

} // namespace batchllm::cuda
