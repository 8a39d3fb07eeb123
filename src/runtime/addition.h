// The rows of one batchllm_add_ call: either all of them are added or none.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "runtime/outcome.h"
#include "runtime/row_store.h"

namespace batchllm {

// What an addition changes when it is committed. Owned by the engine.
struct Intake {
    RowStore rows;
    std::vector<int64_t> unplanned; // ids in order of addition; -1: a row that was answered at once
    std::deque<Outcome> outcomes;   // finished but not polled
    int64_t added = 0;         // rows, bad ones included; also the next row's tag if none is given
    int64_t bad = 0;           // rows answered at once with an error
    int64_t prompt_tokens = 0; // of `unplanned`
    int64_t generation = 0;    // the most tokens that unanswered rows may still generate
};

class Addition {
  public:
    explicit Addition(Intake *intake);
    Addition(const Addition &) = delete;
    Addition &operator=(const Addition &) = delete;
    ~Addition(); // undoes everything unless commit() was called

    // The tag of the next row: the caller's, or else its index in the order of addition.
    uint64_t next_tag(const uint64_t *tags) const {
        return tags != nullptr ? tags[added_] : static_cast<uint64_t>(intake_->added + added_);
    }

    void add(uint64_t tag, std::span<const int32_t> tokens,
             std::shared_ptr<const PreparedParams> params, std::unique_ptr<const ScoreSpec> score,
             int64_t generation, int64_t tokens_to_come = 0);
    // Makes the result (or results) of a row that cannot be computed.
    void add_bad(uint64_t tag, int64_t prompt_tokens, int32_t samples, const Status &why);

    void commit();

  private:
    Intake *intake_;
    int64_t first_id_;
    size_t first_unplanned_;
    size_t first_outcome_;
    int64_t added_ = 0;
    int64_t bad_ = 0;
    int64_t prompt_tokens_ = 0;
    int64_t generation_ = 0;
    bool committed_ = false;
};

} // namespace batchllm
