// Layers with short convolutions: the products B, C and x, then the convolution over each context
// node, level by level (state_work.h).
//
// Computed token by token in float, so that the result does not depend on how a prompt is divided
// into steps or where a prefix ends.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/cpu/buffer.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/linear.h"
#include "backend/cpu/state_pool.h"
#include "backend/cpu/state_work.h"
#include "backend/cpu/weights.h"
#include "base/thread_pool.h"

namespace batchllm::cpu {

// All are borrowed. states: must have its slots by the first run. work: for the batch of the
// current run.
class ConvolutionLayers {
  public:
    ConvolutionLayers(const Kernels &kernels, Linear *linear, ThreadPool *pool,
                      const StatePool &states, const StateWork &work)
        : kernels_(kernels), linear_(linear), pool_(pool), states_(states), work_(work) {}

    // Allocates room for this many tokens in any layer of the model; nothing if no layer has a
    // short convolution.
    Status allocate(const Model &model, int64_t step_tokens);

    // Computes B * x and C for all tokens of the batch. x: [rounded_rows(tokens), hidden] elements.
    Status project(const PackedConvolution &weights, const std::byte *x, int64_t tokens);
    // Call after project. Brings the states of all nodes up to date and writes the input of the o
    // projection: token t to row rows[t] of `out` unless that is -1, or to row t if `rows` is null.
    // [.., channels] elements
    void convolve(const ShortConvolution &shape, const PackedConvolution &weights, size_t layer,
                  const std::vector<int32_t> *rows, std::byte *out);

  private:
    // The products of a node's tokens, preceded by those that its state contains.
    class Inputs;

    const Kernels &kernels_;
    Linear *linear_;
    ThreadPool *pool_;
    const StatePool &states_;
    const StateWork &work_;

    // For the layer that is running.
    Buffer products_;          // [tokens, channels] float: B * x
    Buffer gates_;             // [tokens, channels] float: C
    std::vector<float> zeros_; // [maximum of channels]
};

} // namespace batchllm::cpu
