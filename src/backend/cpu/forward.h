// A token batch -> keys and values in the pages, and the hidden states of tokens whose logits are
// wanted.
//
// The residual stream is in float; inputs of matrix products, queries, keys and values are elements
// of the compute type. In the last layer, attention and everything after it run only for tokens
// whose logits are wanted; the other tokens need only keys and values.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/adapters.h"
#include "backend/cpu/attention.h"
#include "backend/cpu/convolution_layers.h"
#include "backend/cpu/experts.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/kv_pages.h"
#include "backend/cpu/latent_layers.h"
#include "backend/cpu/linear.h"
#include "backend/cpu/linear_attention.h"
#include "backend/cpu/ranks.h"
#include "backend/cpu/tower.h"
#include "backend/cpu/weights.h"
#include "backend/cpu/worklist.h"
#include "base/thread_pool.h"

namespace batchllm::cpu {

// Wall-clock seconds by part, summed since the object was created.
struct PartSeconds {
    double prepare = 0; // worklists, embedding, rotary tables
    double norm = 0;
    double qkv = 0;  // including B, C and x of short convolutions
    double rope = 0; // including writing keys and values
    double attention = 0;
    double linear_attention = 0; // everything but the output projection
    double convolution = 0;      // the part of a short convolution between its products
    double output = 0;
    double gate_up = 0;
    double down = 0;
    double experts = 0;      // everything in a layer with experts
    double layer_inputs = 0; // and layer scalars
    double exchange = 0;     // between ranks, waiting included
    double head = 0;
    double sample = 0;
    double linear() const { return qkv + output + gate_up + down + experts + head; }
};

class Forward {
  public:
    // Sizes all buffers for step_tokens. model, kernels and pool are borrowed. reproducible: a
    // token's hidden state depends, bit for bit, only on the tokens up to it. rank: of a model's part;
    // all ranks run the same batches at the same time.
    static Result<std::unique_ptr<Forward>> create(const Model &model, const Kernels &kernels,
                                                   ThreadPool *pool, int64_t step_tokens,
                                                   bool reproducible = false, Rank rank = {});
    int64_t packed_bytes() const { return linear_->packed_bytes(); } // of the matrices

    // Provides the pages and states that run() writes. Call once, after the weights are packed.
    Status take_pages(KvPages pages);
    void take_states(StatePool states) { states_ = std::move(states); }
    // For batches from now on. null: the slot is empty.
    void set_adapter(int32_t slot, std::shared_ptr<const CpuAdapter> adapter);
    // Borrowed: whose pictures the batches from now on may have.
    void set_tower(const CpuTower *tower) { tower_ = tower; }
    const KvPages &pages() const { return pages_; }

    // Computes the batch. wanted: the tokens whose hidden state is wanted, for logits or for
    // itself; ascending and distinct.
    Status run(const TokenBatch &batch, const std::vector<int32_t> &wanted);

    // Logits of wanted[first, first + count): [count, vocabulary]. A rank writes those of its tokens.
    Status logits(int64_t first, int64_t count, float *out);

    // sum += the hidden state of wanted[i], after the last norm. [hidden]
    void add_hidden(int64_t i, std::span<float> sum) const;

    PartSeconds &seconds() { return seconds_; }

  private:
    // Attention's work for the layers with one window and one head shape.
    struct Work {
        CpuWorklistOptions options;
        bool wanted_only; // used by the last layer
        CpuWorklist list;
    };

    Forward(const Model &model, const Kernels &kernels, ThreadPool *pool, int64_t step_tokens,
            bool reproducible, Rank rank)
        : model_(model), kernels_(kernels), pool_(pool), step_tokens_(step_tokens),
          reproducible_(reproducible), rank_(rank) {}
    Status allocate();
    void choose_work();
    void prepare(const TokenBatch &batch, const std::vector<int32_t> &wanted);
    Status find_pictures(const TokenBatch &batch);
    // Part `part` of what stands for the token; null: it is no part of a picture.
    const float *picture_row(int64_t token, int64_t part) const;
    // wanted: the tokens of the rows; null: all.
    void add_deepstack(size_t layer, int64_t rows, const std::vector<int32_t> *wanted);
    void find_adapters(const TokenBatch &batch, const std::vector<int32_t> &wanted);
    void embed(const TokenBatch &batch, int64_t token);
    void add_embedding(const TokenBatch &batch, int64_t token, float *x) const;
    Status run_layer(const TokenBatch &batch, size_t layer, const std::vector<int32_t> &wanted);
    // The normed residual stream -> the input of the mixer's last product, for `rows` tokens: the
    // wanted ones, or all if that is null.
    Status mix(const TokenBatch &batch, size_t layer, const std::vector<int32_t> *wanted,
               int64_t rows);
    Status attend(const TokenBatch &batch, size_t layer, const Attention &attention,
                  const std::vector<int32_t> *wanted, int64_t rows);
    Status attend_latents(const TokenBatch &batch, size_t layer, const Attention &attention,
                          int64_t rows);
    template <typename Net> // a LinearAttention
    Status attend_linearly(size_t layer, const Net &net, int64_t tokens,
                           const std::vector<int32_t> *wanted, int64_t rows);
    Status convolve(size_t layer, const ShortConvolution &convolution, int64_t tokens,
                    const std::vector<int32_t> *wanted);
    void gate_heads(const Attention &attention, const PackedAttention &weights,
                    const std::vector<int32_t> *wanted, int64_t rows);
    Status feed(size_t layer, int64_t rows);
    Status feed_dense(size_t layer, const FeedForward &feed_forward, int64_t rows);
    Status feed_experts(size_t layer, const Experts &experts, int64_t rows);
    Status shared_expert(size_t layer, int64_t rows);
    Status add_experts(size_t layer, const Experts &experts, int64_t rows);
    Status make_layer_inputs(const TokenBatch &batch);
    Status add_layer_input(size_t layer, int64_t rows, const std::vector<int32_t> *wanted);
    void scale_residual(float scalar, int64_t rows);
    void gather(const std::vector<int32_t> &wanted, bool parallel);
    void norm(const PackedNorm &norm, const float *x, int64_t rows, std::byte *out);
    void norm_in_place(const PackedNorm &norm, float *x, int32_t n, float shared = 0) const;
    void norm_rows(const PackedNorm &norm, int64_t rows, float *x);
    void norm_heads(const PackedNorm &norm, bool whole, float *heads, int32_t count,
                    int32_t head_dim, int32_t stride, float shared = 0) const;
    Status share_norms(const Attention &attention, const PackedAttention &weights, int64_t tokens);
    void turn(const Attention &attention, int32_t token, float *head) const;
    void write_heads(const TokenBatch &batch, const Attention &attention,
                     const PackedAttention &weights);
    void write_token(const TokenBatch &batch, const Attention &attention,
                     const PackedAttention &weights, int32_t token);
    float query_scale(const Attention &attention, int32_t position) const;
    // Where a token's keys and values go: a place in a group of a page.
    struct Place {
        int32_t page, group, slot;
        // The group's first place to be cleared, since it has no token yet; from kGroupTokens on: none.
        int32_t unused;
    };
    Place place_of(const TokenBatch &batch, const Attention &attention, int32_t token) const;
    void write_latent(const TokenBatch &batch, const Attention &attention,
                      const PackedLatent &weights, int32_t token, float scale);
    // Writes a row of a product, plus its bias (may be null), to its destination.
    using Store = void (*)(const float *x, const float *bias, int32_t n, float *to);
    Status product(const PackedMatrix &matrix, const std::byte *x, int64_t rows, const Vector &bias,
                   Store store, float *to);
    void add_normed(const PackedNorm &after, float scale, int64_t rows, Buffer *from, Buffer *to);
    Status add_product(const PackedMatrix &matrix, const std::byte *x, int64_t rows,
                       const Vector &bias, const PackedNorm &after, float scale, Rank rank = {});
    Status sum(int64_t rows, Buffer *numbers);

    const Model &model_;
    const Kernels &kernels_;
    ThreadPool *pool_;
    int64_t step_tokens_;
    bool reproducible_;
    Rank rank_;
    std::unique_ptr<Linear> linear_;
    PackedWeights weights_;
    KvPages pages_;
    std::unique_ptr<PagedAttention> attention_;
    std::unique_ptr<ExpertLayers> experts_;
    StatePool states_;
    StateWork state_work_;
    std::unique_ptr<LinearAttentionLayers> linear_attention_;
    std::unique_ptr<ConvolutionLayers> convolutions_;
    std::unique_ptr<LatentLayers> latents_;
    const CpuTower *tower_ = nullptr;
    std::vector<std::shared_ptr<const CpuAdapter>> adapters_; // by slot
    std::vector<float> zeros_;                                // [largest head_dim]
    std::vector<int64_t> angles_begin_; // [ropes] where each rope's angles begin, within a token's
    int64_t angles_ = 0;                // per token, over all ropes

    // For the current step.
    std::vector<int32_t> node_of_; // [tokens]
    std::vector<int32_t> row_of_;  // [tokens] row of the last layer's result, or -1
    std::vector<Work> work_;       // the last layer has its own entry
    std::vector<size_t> work_of_;  // [layers]
    int64_t wanted_rows_ = 0;
    struct PicturePart {
        int32_t slot; // -1: the token is no part of a picture
        int32_t token;
    };
    std::vector<PicturePart> picture_of_;            // [tokens] or, without pictures, empty
    std::vector<const CpuAdapter *> adapter_of_;     // [tokens] or, without adapters, empty
    std::vector<const CpuAdapter *> wanted_adapter_; // [wanted] likewise
    Buffer cosine_, sine_;                           // [tokens, angles] float
    Buffer residual_;                                // [tokens, hidden] float
    Buffer delta_;        // [tokens, hidden] float: a sublayer's result that is not simply added
    Buffer expert_sums_;  // the same of experts with a norm of their own
    Buffer input_;        // [rows, hidden] elements: input of a matrix product
    Buffer qkv_;          // [tokens, rows of q, k and v] float, for the largest layer
    Buffer queries_;      // [kv_head][token][head of its group][D] elements
    Buffer attended_;     // [rows, heads * head_dim] elements
    Buffer activated_;    // [rows, largest width] elements
    Buffer layer_inputs_; // [tokens, layers * LayerInputs::width] float
    // [2, tokens] for norms of all queries and of all keys: what other ranks add to epsilon
    std::vector<float> shared_norms_;
    PartSeconds seconds_;
};

} // namespace batchllm::cpu
