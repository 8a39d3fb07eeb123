// Lengths, one by one -> how often each occurs, in memory that does not depend on how many there
// are. Below 1,024 each length has its own count; above, lengths within 1/512 of each other share
// one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace batchllm {

class LengthCounts {
  public:
    void add(int64_t length, int64_t times = 1);

    int64_t count() const { return count_; }
    int64_t total() const { return total_; } // sum of all lengths
    int64_t least() const { return least_; }
    int64_t most() const { return most_; }
    double mean() const;
    // The smallest length that at least this share of all lengths do not exceed; exact below 1,024.
    int64_t quantile(double share) const;
    // How many are in [begin, end). If a limit falls inside a count, that count contributes in
    // proportion.
    double within(double begin, double end) const;

  private:
    static size_t place_of(int64_t length);
    static int64_t first_of(size_t place); // the smallest length counted there

    std::vector<int64_t> counts_; // by place
    int64_t count_ = 0, total_ = 0, least_ = 0, most_ = 0;
};

} // namespace batchllm
