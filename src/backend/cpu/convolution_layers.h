// The layers with short convolutions: the products of B, C and x, then the convolution over each context node,
// level by level (state_work.h).
//
// Token by token and in float, so that it does not matter how a prompt is cut into steps or where a prefix ends.
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

// All are borrowed. states: the slots, by the time of the first run; work: of the batch that is run.
class ConvolutionLayers {
  public:
    ConvolutionLayers(const Kernels &kernels, Linear *linear, ThreadPool *pool,
                      const StatePool &states, const StateWork &work)
        : kernels_(kernels), linear_(linear), pool_(pool), states_(states), work_(work) {}

    // Room for so many tokens in any layer of the model; none where no layer has a short convolution.
    Status allocate(const Model &model, int64_t step_tokens);

    // B * x and C of all tokens of the batch. x: [rounded_rows(tokens), hidden] elements.
    Status project(const PackedConvolution &weights, const std::byte *x, int64_t tokens);
    // After project: brings the states of all nodes up to date, and writes what goes through o, token t's to row
    // rows[t] of `out` if that is not -1, or where `rows` is null to row t. [.., channels] elements
    void convolve(const ShortConvolution &shape, const PackedConvolution &weights, size_t layer,
                  const std::vector<int32_t> *rows, std::byte *out);

  private:
    // The products of a node's tokens and, before them, of those that its state holds.
    class Inputs;

    const Kernels &kernels_;
    Linear *linear_;
    ThreadPool *pool_;
    const StatePool &states_;
    const StateWork &work_;

    // Of the layer that is run.
    Buffer products_;          // [tokens, channels] float: B * x
    Buffer gates_;             // [tokens, channels] float: C
    std::vector<float> zeros_; // [most channels]
};

} // namespace batchllm::cpu
