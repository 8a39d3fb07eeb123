// A token batch -> keys and values in the pages, and hidden states where logits are wanted.
//
// The residual stream is in float; inputs of matrix products, queries, keys and values are elements
// of the compute type. The last layer attends and goes on only for the tokens whose logits are
// wanted: of the others it needs keys and values alone.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/attention.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/kv_pages.h"
#include "backend/cpu/linear.h"
#include "backend/cpu/weights.h"
#include "backend/cpu/worklist.h"
#include "base/thread_pool.h"

namespace batchllm::cpu {

// Wall seconds by part, summed since the object was made.
struct PartSeconds {
    double prepare = 0; // worklists, embedding, rotary tables
    double norm = 0;
    double qkv = 0;
    double rope = 0; // with writing keys and values
    double attention = 0;
    double output = 0;
    double gate_up = 0;
    double down = 0;
    double head = 0;
    double sample = 0;
    double linear() const { return qkv + output + gate_up + down + head; }
};

class Forward {
  public:
    // Sizes all buffers for step_tokens. model, kernels and pool are borrowed.
    static Result<std::unique_ptr<Forward>> create(const Model &model, const Kernels &kernels,
                                                   ThreadPool *pool, int64_t step_tokens);

    // The pages that run() writes; set once, after the weights are packed.
    Status take_pages(KvPages pages);
    const KvPages &pages() const { return pages_; }

    // Computes the batch. wanted: tokens whose logits are wanted, ascending and each once.
    Status run(const TokenBatch &batch, const std::vector<int32_t> &wanted);

    // Logits of wanted[first, first + count): [count, vocabulary].
    Status logits(int64_t first, int64_t count, float *out);

    PartSeconds &seconds() { return seconds_; }

  private:
    Forward(const Model &model, const Kernels &kernels, ThreadPool *pool, int64_t step_tokens)
        : model_(model), config_(model.config), kernels_(kernels), pool_(pool),
          step_tokens_(step_tokens) {}
    Status allocate();
    void prepare(const TokenBatch &batch, const std::vector<int32_t> &wanted);
    Status run_layer(const TokenBatch &batch, int32_t layer, const std::vector<int32_t> &wanted);
    void norm(const float *x, const Vector &weight, int64_t rows, std::byte *out);
    void write_heads(const TokenBatch &batch, int32_t layer);
    void write_token(const TokenBatch &batch, int32_t layer, int32_t token);
    Status add_product(const PackedMatrix &matrix, const std::byte *x, int64_t rows,
                       const Vector &bias);

    const Model &model_;
    const ModelConfig &config_;
    const Kernels &kernels_;
    ThreadPool *pool_;
    int64_t step_tokens_;
    std::unique_ptr<Linear> linear_;
    PackedWeights weights_;
    KvPages pages_;
    std::unique_ptr<Attention> attention_;
    std::vector<float> inverse_frequencies_; // [head_dim / 2]
    std::vector<float> zeros_;               // [head_dim]

    // Of the current step.
    std::vector<int32_t> node_of_; // [tokens]
    std::vector<int32_t> row_of_;  // [tokens] row of the last layer's result, or -1
    Worklist all_;                 // layers that see everything, or those with the window
    Worklist windowed_;
    Worklist last_; // the last layer: wanted tokens alone
    int64_t wanted_rows_ = 0;
    Buffer cosine_, sine_; // [tokens, head_dim / 2] float
    Buffer residual_;      // [tokens, hidden] float
    Buffer input_;         // [rows, hidden] elements: what a matrix product reads
    Buffer qkv_;           // [tokens, (heads + 2 kv_heads) * head_dim] float
    Buffer queries_;       // [kv_head][token][head of its group][D] elements
    Buffer attended_;      // [rows, heads * head_dim] elements
    Buffer activated_;     // [rows, intermediate] elements
    PartSeconds seconds_;
};

} // namespace batchllm::cpu
