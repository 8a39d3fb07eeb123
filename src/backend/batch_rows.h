// How backends read a token batch: they check that it is well formed and find the tokens whose
// results its rows want.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "backend/backend.h"

namespace batchllm {

// Checks only what would otherwise be read or written out of bounds, and trusts the scheduler for
// the rest. feedable: whether a fed_token() may stand for that row of the previous batch; null: no
// fed_token() is allowed.
Status check_batch(const TokenBatch &batch, const BackendInfo &info,
                   const std::function<bool(int32_t row)> &feedable);

// The rows of a batch, by the tokens whose results they want. Row number i is the batch's row i.
class BatchRows {
  public:
    void read(const TokenBatch &batch);

    // The wanted tokens, ascending and distinct.
    const std::vector<int32_t> &tokens() const { return tokens_; }
    // The numbers of the rows that want tokens()[i], except embedded rows.
    std::span<const int32_t> rows_of(int64_t i) const {
        const auto begin = static_cast<size_t>(begin_[static_cast<size_t>(i)]);
        return std::span(by_token_).subspan(
            begin, static_cast<size_t>(begin_[static_cast<size_t>(i) + 1]) - begin);
    }
    // The index of a wanted token in tokens(). The tokens of one row are adjacent there.
    int64_t place(int32_t token) const;
    // Where row `number` begins in BatchOutput::target_logprobs. targets(): the total over all
    // rows.
    int64_t target_begin(int32_t number) const {
        return target_begin_[static_cast<size_t>(number)];
    }
    int64_t targets() const { return targets_; }
    // The numbers of the rows that are embedded, in the order of BatchOutput::hidden.
    std::span<const int32_t> embedded_rows() const { return embedded_; }

  private:
    std::vector<int32_t> tokens_, begin_, by_token_, embedded_;
    std::vector<int64_t> target_begin_;
    int64_t targets_ = 0;
};

} // namespace batchllm
