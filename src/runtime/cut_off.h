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

    // The warning: once half of many rows have been cut off, or a tenth of all once all are done. ""
    // otherwise, and after it has been returned, until all are done. After the engine's first, small
    // jobs have none.
    std::string take_warning(bool all_done);

    // So far: results that have ended by themselves, and how many of them were cut off.
    int64_t constrained() const { return before_.constrained + job_.constrained; }
    int64_t cut() const { return before_.cut + job_.cut; }

  private:
    struct Counts {
        int64_t constrained = 0;
        int64_t cut = 0;
    };
    std::string warning() const;

    Counts job_;              // since the engine last had nothing to do
    Counts before_;           // of all rows before
    int64_t tokens_ = 0;      // of the job's first row that was cut off
    int64_t least_bytes_ = 0; // of its constraint
    bool told_ = false;       // in this job
    bool ever_told_ = false;
};

} // namespace batchllm
