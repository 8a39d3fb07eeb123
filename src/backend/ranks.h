// Ranks: threads of one process that each compute a part of a model (model/parts.h) in lockstep.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "base/status.h"

namespace batchllm {

// Where ranks wait for each other, with the threads of all but the first. After a failure every call fails, also those that
// wait.
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
    using Task = std::function<Status(int32_t)>;
    friend Status run_ranks(Meeting *meeting, const Task &task);
    Status run(const Task &task, int32_t rank) noexcept;
    void start();
    void serve(const std::stop_token &stop, int32_t rank, uint64_t calls);

    int32_t ranks_;
    mutable std::mutex mutex_;
    std::condition_variable met_;
    int32_t waiting_ = 0;
    uint64_t meetings_ = 0;
    bool failed_ = false;

    // Of run_ranks().
    std::condition_variable_any called_;
    std::condition_variable ended_;
    const Task *task_ = nullptr; // of the last call
    uint64_t calls_ = 0;
    int32_t running_ = 0;               // threads in that call
    std::vector<Status> statuses_;      // [ranks]
    std::vector<std::jthread> threads_; // of ranks 1 and on
};

// Runs task(rank) for all ranks at the same time, rank 0 on this thread and each other one always on the same, and returns
// the first error that is not of another rank's making. One call at a time. meeting: may be null for one rank.
Status run_ranks(Meeting *meeting, const std::function<Status(int32_t)> &task);

} // namespace batchllm
