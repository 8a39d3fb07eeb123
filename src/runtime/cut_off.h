// Constrained rows that max_tokens cut off: their texts are beginnings of valid ones. Counts them, and
// warns if they are many.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/outcome.h"
#include "sample/sampling.h"

namespace batchllm {

class CutOff {
  public:
    // Counts a result of a row with these parameters.
    void count(const SamplingParams &params, const Outcome &outcome);

    // The warning, once: when half of many rows were cut off, or a tenth of all if `all_done`. Else "".
    std::string take_warning(bool all_done);

    int64_t constrained() const { return constrained_; } // results that have ended by themselves
    int64_t cut() const { return cut_; }

  private:
    int64_t constrained_ = 0;
    int64_t cut_ = 0;
    int64_t max_tokens_ = 0;  // of the row that was cut off first
    int64_t least_bytes_ = 0; // of its constraint
    bool warned_ = false;
};

} // namespace batchllm
