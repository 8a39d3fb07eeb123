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
    explicit Budget(int64_t states = int64_t{1} << 19, int64_t work = int64_t{1} << 28)
        : states_(states), states_left_(states), work_left_(work) {}

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
    Status exhausted() const;

    int64_t states_;
    int64_t states_left_;
    int64_t work_left_;
};

} // namespace batchllm
