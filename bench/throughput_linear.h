// The best rate of a model's linear layers under a job's own conditions.
//
// A chip at its power limit runs products up to 12 % slower than one that was just idle. So
// products are timed under the job's conditions: the job's first steps are run again right after
// it, and each step is followed by a pass of only the linear layers for every 4,096 tokens of the
// step, or part of them, timed by events on the device. Passes alternate between numbers of tokens
// from 1,024 up to a step's. The rate for a number is the median of its passes, not counting the
// first; the best of these rates is that of the job.
//
// So is a pass of as many tokens as rows decode at once, whose rate is printed alone.
//
// A pass is each product of a step in order, by cuBLASLt with the algorithms that the backend
// chose, even if the engine computes a product in its own kernel; for a layer with experts, it is
// their kernels with routing. It has no norms, activations or attention.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "cuda_backend.h"

namespace batchllm {

struct LinearRate {
    double tokens_a_second = 0;
    int64_t tokens = 0; // tokens in the pass
};

class LinearProbe {
  public:
    // `sampled` of `all` tokens need logits. decoding: rows at once.
    LinearProbe(cuda::CudaBackend *backend, int64_t sampled, int64_t all, int64_t decoding);

    // Enqueues the passes after a step of this many tokens.
    Status follow(int64_t tokens);
    // Enqueues the next pass.
    Status run();
    bool done() const { return passes_.size() >= kRounds * tokens_.size(); }
    // Waits for all passes. print: the rate at each number of tokens.
    Result<LinearRate> best(bool print);

  private:
    static constexpr size_t kRounds = 6; // the first does not count

    struct Pass {
        cuda::Event begin, end;
    };
    int64_t wanted(int64_t tokens) const;

    cuda::CudaBackend *backend_;
    int64_t sampled_, all_, decoding_;
    std::vector<int64_t> tokens_; // numbers of tokens, in turn
    std::vector<Pass> passes_;
};

} // namespace batchllm
