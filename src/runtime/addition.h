// The rows of one batchllm_add_ call: either all of them are added or none.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "runtime/answers.h"
#include "runtime/row_store.h"

namespace batchllm {

// Tokens that rows without a result still need, at most.
struct RowTokens {
    int64_t prompt = 0;
    int64_t generated = 0;
};

// What an addition changes besides the answers of bad rows. Owned by the intake.
struct PendingRows {
    RowStore rows;
    std::vector<int64_t> unplanned; // ids in order of addition; -1: a row that was answered at once
    RowTokens tokens;               // of `unplanned`
    int64_t added = 0; // rows, bad ones included; also the next row's tag if none is given
};

class Addition {
  public:
    Addition(PendingRows *pending, Answers *answers);
    Addition(const Addition &) = delete;
    Addition &operator=(const Addition &) = delete;
    ~Addition(); // undoes everything unless commit() was called

    // The tag of the next row: the caller's, or else its index in the order of addition.
    uint64_t next_tag(const uint64_t *tags) const {
        return tags != nullptr ? tags[added_] : static_cast<uint64_t>(pending_->added + added_);
    }

    void add(uint64_t tag, std::span<const int32_t> tokens,
             std::shared_ptr<const PreparedParams> params, std::unique_ptr<const ScoreSpec> score,
             std::shared_ptr<const RowPictures> pictures, int64_t generated,
             int64_t tokens_to_come = 0);
    // Makes the result (or results) of a row that cannot be computed.
    void add_bad(uint64_t tag, int64_t prompt_tokens, int32_t samples, const Status &why);

    void commit();

  private:
    PendingRows *pending_;
    Answers *answers_;
    int64_t first_id_;
    size_t first_unplanned_;
    size_t first_answer_;
    int64_t added_ = 0;
    int64_t bad_ = 0;
    RowTokens tokens_;
    bool committed_ = false;
};

} // namespace batchllm
