// Ranks: threads of one process that each compute a part of a model (model/parts.h) in lockstep.
//
// Sums are added in the order of ranks, each element by one of them for all. So all ranks have the same bits, and the
// same from run to run.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <vector>

#include "base/status.h"

namespace batchllm::cpu {

// What the ranks of a backend exchange. After a failure every call fails, also those that wait.
class Exchange {
  public:
    explicit Exchange(int32_t ranks) : numbers_(static_cast<size_t>(ranks)) {}

    int32_t ranks() const { return static_cast<int32_t>(numbers_.size()); }
    // Each rank's numbers become the sum of all. All ranks call it, with equally many.
    Status sum(int32_t rank, std::span<float> numbers);
    // Waits until all ranks have called it.
    Status meet();
    // A rank will not come again.
    void fail();

  private:
    std::vector<std::span<float>> numbers_; // [ranks] in the sum that runs
    std::mutex mutex_;
    std::condition_variable met_;
    int32_t waiting_ = 0;
    uint64_t meetings_ = 0;
    bool failed_ = false;
};

// One rank's side of an exchange. Without one, for a whole model, there is nothing to add.
struct Rank {
    Exchange *exchange = nullptr;
    int32_t number = 0;

    explicit operator bool() const { return exchange != nullptr; }
    Status sum(std::span<float> numbers) const {
        return exchange == nullptr ? Status() : exchange->sum(number, numbers);
    }
    Status meet() const { return exchange == nullptr ? Status() : exchange->meet(); }
};

// For RMSNorms over numbers of which `sharing` consecutive ranks have equally many. squares: [norms] the mean square of
// this rank's numbers -> what a norm of those alone has to add to its epsilon, to be the norm of all.
Status share_squares(const Rank &rank, int32_t sharing, std::span<float> squares);
float mean_square(const float *x, int64_t count);

// Runs task(rank) for all ranks at the same time, rank 0 on this thread, and returns the first error that is not of
// another rank's making. exchange: may be null for one rank.
Status run_ranks(Exchange *exchange, const std::function<Status(int32_t)> &task);

} // namespace batchllm::cpu
