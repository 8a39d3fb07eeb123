// Proposed tokens and what became of them -> how likely the next one is right, by the length of the
// match that proposes it. For all rows of a device; observations decay.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace batchllm {

class DraftRates {
  public:
    void count(int32_t match, bool right);
    double rate(int32_t match) const;

  private:
    // Match lengths from 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32: parts that are copied often have the
    // same length, and where they end, all proposals are wrong.
    static constexpr size_t classes = 11;
    static size_t class_of(int32_t match);

    struct Seen {
        double right = 0, all = 0;
    };
    std::array<Seen, classes> seen_;
};

} // namespace batchllm
