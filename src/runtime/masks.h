// The constrained rows of a batch -> masks for its sampling.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/thread_pool.h"
#include "runtime/forced_tokens.h"
#include "runtime/row_run.h"

namespace batchllm {

// The work spent on masks so far, over all batches that needed any.
struct MaskWork {
    int64_t batches = 0;
    int64_t rows = 0;     // with a mask
    int64_t distinct = 0; // masks passed to a backend: equal masks of a batch count once
    int64_t forced_tokens = 0;
    double seconds = 0; // spent making them, including forced tokens
    double longest = 0; // the maximum over batches
    double waited = 0;  // by devices that finished their forward before the masks were ready
};

class RowMasks {
  public:
    explicit RowMasks(const Tokenizer *tokenizer = nullptr) : tokenizer_(tokenizer) {}

    // Makes the masks of a batch's rows on the pool's threads; requests the pool only if there are
    // several masks to make. Empty if no row has a constraint. All tokens before those that the
    // batch samples must be known or proposed. Masks are valid until the rows' states advance. A row whose mask
    // cannot be made gets none, and Constrained::failed says why. A row whose next tokens are
    // forced gets none either: the tokens are in Constrained::forced, and forced() lists those
    // rows.
    std::span<const TokenMask> make(const BatchRecord &record,
                                    const std::function<ThreadPool &()> &pool);

    std::span<Sequence *const> forced() const { return forced_; }

    const MaskWork &work() const { return work_; }

    // Whether a mask depends on a token that an earlier batch, still in flight, samples.
    static bool wait_for_samples(const BatchRecord &record);

  private:
    void make_all(const BatchRecord &record, const std::function<ThreadPool &()> &pool);
    void share_equal_masks();

    std::vector<TokenMask> masks_;    // [rows]
    std::vector<const void *> equal_; // [rows] AllowedTokens::mask
    std::vector<size_t>
        constrained_; // row numbers of sequences' first samples; those behind proposed
                      // tokens follow
    std::unordered_map<const void *, TokenMask> first_of_; // equal_ -> mask of the first row that
                                                           // has it
    MaskWork work_;
    std::vector<Sequence *> forced_;
    const Tokenizer *tokenizer_;
};

} // namespace batchllm
