// Ranks: threads of one process that each compute a part of a model (model/parts.h) in lockstep.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>

#include "base/status.h"

namespace batchllm {

// Where ranks wait for each other. After a failure every call fails, also those that wait.
class Meeting {
  public:
    explicit Meeting(int32_t ranks) : ranks_(ranks) {}
    virtual ~Meeting() = default;

    int32_t ranks() const { return ranks_; }
    // Waits until all ranks have called it.
    Status meet();
    // A rank will not come again.
    virtual void fail();
    bool failed() const;
    // Of a call that only waited for a rank that failed.
    static Status other_failed();

  private:
    int32_t ranks_;
    mutable std::mutex mutex_;
    std::condition_variable met_;
    int32_t waiting_ = 0;
    uint64_t meetings_ = 0;
    bool failed_ = false;
};

// Runs task(rank) for all ranks at the same time, rank 0 on this thread, and returns the first error that is not of
// another rank's making. meeting: may be null for one rank.
Status run_ranks(Meeting *meeting, const std::function<Status(int32_t)> &task);

} // namespace batchllm
