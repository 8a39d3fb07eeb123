// Constrained rows whose texts are not valid: max_tokens cut them off, or stop strings or tokens of their own, or what
// their constraint starts after was never generated. Counts them, and warns if they are many.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/outcome.h"
#include "sample/sampling.h"

namespace batchllm {

class CutOff {
  public:
    // Counts a result of a row with these parameters.
    void count(const SamplingParams &params, const Outcome &outcome);

    // The warning: once half of many rows have no valid text, or a tenth of all once all are done. ""
    // otherwise, and after it has been returned, until all are done. After the engine's first, small
    // jobs have none.
    std::string take_warning(bool all_done);

    // So far: results of rows with a constraint that have ended by themselves or by max_tokens, and how many of them
    // max_tokens, or stop strings or tokens of their own, cut off. Rows without a result are in neither.
    int64_t constrained() const { return before_.constrained + job_.constrained; }
    int64_t cut() const { return before_.cut + job_.cut + job_.stopped + job_.unstarted_cut; }

  private:
    struct Counts {
        int64_t constrained = 0;
        int64_t cut = 0;           // by max_tokens, after their constraint started
        int64_t stopped = 0;       // likewise by stop strings or tokens
        int64_t unstarted = 0;     // whose constraint has not started, whatever ended them
        int64_t unstarted_cut = 0; // of these, by max_tokens, stop strings or tokens
    };
    std::string warning() const;
    std::string warning_of_cut() const;
    std::string warning_of_stopped() const;
    std::string warning_of_unstarted() const;

    Counts job_;         // since the engine last had nothing to do
    Counts before_;      // of all rows before; `cut`: by whatever
    int64_t tokens_ = 0; // of the job's first row that was cut off after its constraint started
    int64_t least_bytes_ = 0; // of its constraint
    std::shared_ptr<const Constraint>
        unstarted_;     // of the job's first row whose constraint has not started
    bool told_ = false; // in this job
    bool ever_told_ = false;
};

} // namespace batchllm
