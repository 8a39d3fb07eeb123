// The best rate of a model's linear layers under a job's own conditions.
//
// A chip at its power limit runs products up to 12 % slower than one that has just idled. So products are timed
// where the job runs them: the job's first steps are run again right after it, and behind each step comes a pass of all
// linear layers alone for every 4,096 tokens of the step, or part of them, timed by events on the device. Passes take
// turns at numbers of tokens from 1,024 up to a step's. The rate at a number is the median of its passes, the first of
// which does not count; the best of these rates is the job's.
//
// A pass is each product of a step in order, by cuBLASLt with the algorithms that the backend chose, also where a step of
// the engine has a product within a kernel of its own; of a layer with experts, their kernels with routing. It has no norms,
// activations or attention.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "cuda_backend.h"

namespace batchllm {

struct LinearRate {
    double tokens_a_second = 0;
    int64_t tokens = 0; // in the pass
};

class LinearProbe {
  public:
    // Of `all` tokens, `sampled` want logits.
    LinearProbe(cuda::CudaBackend *backend, int64_t sampled, int64_t all);

    // Enqueues the passes behind a step of so many tokens.
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
    int64_t sampled_, all_;
    std::vector<int64_t> tokens_; // numbers, in turn
    std::vector<Pass> passes_;
};

} // namespace batchllm
