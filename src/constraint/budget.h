// Limits the cost of creating one constraint. A hostile expression or schema exhausts it and
// becomes an error in bounded time and memory; it never hangs.
//
// It counts work instead of measuring time, so that the same constraint passes or fails on every
// machine.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace batchllm {

class Budget {
  public:
    // states: over all intermediate automata, including discarded ones. work: transitions examined,
    // about a hundred million per second.
    explicit Budget(int64_t states = kStates, int64_t work = kWork)
        : states_(states), states_left_(states), work_left_(work) {}
    // A part of the usual budget. *spent becomes true if the budget, or a copy of it, is spent.
    static Budget part(int64_t divisor, bool *spent) {
        Budget made(kStates / divisor, kWork / divisor);
        made.spent_ = spent;
        return made;
    }

    // BATCHLLM_ERROR_UNSUPPORTED once the budget is spent.
    Status spend_states(int64_t count) {
        states_left_ -= count;
        return states_left_ < 0 ? exhausted() : Status();
    }
    Status spend_work(int64_t count) {
        work_left_ -= count;
        return work_left_ < 0 ? exhausted() : Status();
    }

  private:
    static constexpr int64_t kStates = int64_t{1} << 19;
    static constexpr int64_t kWork = int64_t{1} << 28;
    Status exhausted() const;

    int64_t states_;
    int64_t states_left_;
    int64_t work_left_;
    bool *spent_ = nullptr;
};

} // namespace batchllm
