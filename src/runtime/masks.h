// The rows of a batch that have a constraint -> masks for its sampling.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "runtime/forced_tokens.h"
#include "runtime/job.h"

namespace batchllm {

class RowMasks {
  public:
    explicit RowMasks(const Tokenizer *tokenizer = nullptr) : tokenizer_(tokenizer) {}

    // Masks of a batch's rows, made on the pool's threads, which is asked for only where there are
    // several to make; empty when no row has a constraint. All tokens before those that the batch
    // samples are known. They hold until the rows' states move. A row for which none can be made gets
    // none: its Constrained::failed says why. Nor does one whose next tokens are forced, which stand in
    // Constrained::forced then: forced() are those rows.
    std::span<const TokenMask> make(const BatchRecord &record,
                                    const std::function<ThreadPool &()> &pool);

    std::span<Sequence *const> forced() const { return forced_; }

    // Whether a mask depends on a token that a batch before this one, in flight, samples.
    static bool wait_for_samples(const BatchRecord &record);

  private:
    std::vector<TokenMask> masks_;    // [rows]
    std::vector<size_t> constrained_; // rows
    std::vector<Sequence *> forced_;
    const Tokenizer *tokenizer_;
};

} // namespace batchllm
