// Delta nets of both kinds and Mamba-2: projections, convolution, the rule over each context node, gated
// norms. Nodes are computed level by level (backend/state_levels.h).
//
// Reproducible mode works token by token, so that the result does not depend on how a prompt is
// divided into steps or where a prefix ends.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/buffer.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/linear.h"
#include "backend/cpu/ranks.h"
#include "backend/cpu/state_pool.h"
#include "backend/cpu/state_work.h"
#include "backend/cpu/weights.h"
#include "base/thread_pool.h"

namespace batchllm::cpu {

// All are borrowed. states: must have its slots by the first run. work: for the batch of the
// current run.
class LinearAttentionLayers {
  public:
    LinearAttentionLayers(const Kernels &kernels, Linear *linear, ThreadPool *pool,
                          const StatePool &states, const StateWork &work, bool reproducible = false,
                          Rank rank = {})
        : kernels_(kernels), linear_(linear), pool_(pool), states_(states), work_(work),
          reproducible_(reproducible), rank_(rank) {}

    // Allocates room for this many tokens in any layer of the model; nothing if no layer has linear
    // attention.
    Status allocate(const Model &model, int64_t step_tokens);

    // For all tokens of the batch: brings the states of their nodes up to date. x:
    // [rounded_rows(tokens), hidden] elements.
    template <typename Net> // a LinearAttention
    Status run(const Net &net, const PackedLinearAttention &weights, size_t layer,
               const std::byte *x, int64_t tokens);
    // The heads' results, gated and normed, for the wanted tokens, or for the first `rows` tokens
    // if `wanted` is null. [rows, values_size] elements.
    Status results(const DeltaNet &net, const PackedLinearAttention &weights,
                   const std::vector<int32_t> *wanted, int64_t rows, std::byte *out) const;
    Status results(const ChannelDeltaNet &net, const PackedLinearAttention &weights,
                   const std::vector<int32_t> *wanted, int64_t rows, std::byte *out) const;
    Status results(const Mamba2 &net, const PackedLinearAttention &weights,
                   const std::vector<int32_t> *wanted, int64_t rows, std::byte *out) const;

  private:
    using Node = StateWork::Node;
    using Piece = StateWork::Piece;
    // What each rule does with a token's convolved queries and keys, `mixed`, and makes of its gates.
    void prepare(const DeltaNet &net, const PackedLinearAttention &weights, int64_t token,
                 float *mixed) const;
    void prepare(const ChannelDeltaNet &net, const PackedLinearAttention &weights, int64_t token,
                 float *mixed) const;
    void prepare(const Mamba2 &net, const PackedLinearAttention &weights, int64_t token,
                 float *mixed) const;
    void set_lengths(const LinearAttention &net, const PackedLinearAttention &weights,
                     float *mixed) const;
    Status make_gates(const ChannelDeltaNet &net, const PackedLinearAttention &weights,
                      int64_t tokens);
    Status make_gate(const PackedMatrix &matrix, const LinearAttention &net, int64_t column,
                     int64_t tokens, float *out);
    template <typename Net> void convolve(const Net &net, const PackedLinearAttention &weights,
                                          size_t layer, const Piece &piece);
    void run_head(const LinearAttention &attention, const PackedLinearAttention &weights,
                  size_t layer, const Node &node, bool removes, int64_t head, int32_t thread);
    // One part of a token's results after another, each of `length`: part(index, result, gate, out), index over all tokens'. gates: those of the
    // first token, and how far apart tokens' are.
    struct Gates {
        const float *first;
        int64_t stride;
    };
    Gates gates_of(const LinearAttention &attention) const {
        return {projected(attention, 0) + attention.channels(), attention.input_rows()};
    }
    template <typename Part> void each_result(const LinearAttention &attention, Gates gates,
                                              int64_t length, const std::vector<int32_t> *wanted,
                                              int64_t rows, std::byte *out, const Part &part) const;
    void keep_inputs(const LinearAttention &attention, size_t layer, const Node &node);
    float *projected(const LinearAttention &attention, int64_t token) const {
        return projected_.floats() + token * attention.input_rows();
    }
    float *mixed(const LinearAttention &attention, int64_t token) const {
        return mixed_.floats() + token * attention.channels();
    }

    const Kernels &kernels_;
    Linear *linear_;
    ThreadPool *pool_;
    const StatePool &states_;
    const StateWork &work_;
    bool reproducible_;
    Rank rank_;

    // For the layer that is running.
    Buffer projected_; // [tokens, input_rows] float
    Buffer mixed_;     // [tokens, channels] float: q, k and v after the convolution; results
                       // replace v
    Buffer log_decay_; // [tokens, value_heads] float
    Buffer rate_;      // [tokens, value_heads] float
    Buffer low_;       // [rows, gate_rank] elements: what gates are made of
    Buffer decays_;    // [tokens, value_heads, key_dim] float, by channel: a, then the factors of S
    Buffer z_;         // [tokens, values_size] float
    std::vector<float> zeros_;    // [maximum of channels]
    std::vector<Buffer> scratch_; // [threads]
    std::vector<Buffer> wide_;    // [threads] S of a head in float, if slots store it in bf16
};

} // namespace batchllm::cpu
