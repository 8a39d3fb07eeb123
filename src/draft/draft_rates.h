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
    // Match lengths from 3, 4, 6, 8, 12, 16, 32.
    static constexpr size_t classes = 7;
    static size_t class_of(int32_t match);

    struct Seen {
        double right = 0, all = 0;
    };
    std::array<Seen, classes> seen_;
};

} // namespace batchllm
