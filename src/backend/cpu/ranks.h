// What ranks of the CPU (backend/ranks.h) exchange.
//
// Sums are added in the order of ranks, each element by one of them for all. So all ranks have the same bits, and the
// same from run to run.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/ranks.h"
#include "base/status.h"

namespace batchllm::cpu {

// What the ranks of a backend exchange.
class Exchange : public Meeting {
  public:
    explicit Exchange(int32_t ranks) : Meeting(ranks), numbers_(static_cast<size_t>(ranks)) {}

    // Each rank's numbers become the sum of all. All ranks call it, with equally many.
    Status sum(int32_t rank, std::span<float> numbers);

  private:
    std::vector<std::span<float>> numbers_; // [ranks] in the sum that runs
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

} // namespace batchllm::cpu
