// Which lane gets the agenda's next rows, while some are being placed.
//
// A group goes to the lane with the least work left, counted in tokens: prompt tokens to compute
// plus tokens expected to be generated. So while there are groups to place, the lanes stay balanced
// even if the expected lengths are wrong. Near the end, a group may be more than a lane's fair
// share of the remaining work. Its rows are then split between lanes, if that saves more than
// computing the prefix again costs.
//
// Groups that continue a common prefix prefer a lane that already has it. Another lane computes the
// prefix as well once it would otherwise fall behind by many times the prefix's tokens. So a short
// common prefix stays on one lane, and one with most of the rows is on all of them. In the same way,
// groups with an adapter prefer a lane that has it, but never at the expense of balance.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/agenda.h"
#include "runtime/lane.h"

namespace batchllm {

using Lanes = std::vector<std::unique_ptr<Lane>>;

// How many of the prefix's tokens the lane would have to compute.
int32_t missing_tokens(const Lane &lane, const Agenda &agenda, int32_t prefix);

class LaneBalance {
  public:
    LaneBalance(const Lanes &lanes, const Agenda &agenda, const RunLimits &limits);

    // Whether any lane needs more rows than it has.
    bool wants_more() const;

    // A lane, and the work that it has left.
    struct LaneWork {
        Lane *lane;
        int64_t prompt_tokens;
        double tokens; // with those expected to be generated
    };
    // The lane for the next of the group's rows, and the place at which they end.
    struct Part {
        LaneWork *work;
        int64_t row_end;
    };
    Part choose(const PlanGroup &group, int64_t row_begin);
    // The lane has been given rows: with so many prompt tokens to compute, and at most so many to
    // generate.
    void add(LaneWork *work, const RowTokens &tokens) const;

  private:
    LaneWork *lane_for(const PlanGroup &group, int64_t row_begin);
    double work_of(int64_t place, int64_t shared) const;

    const Agenda &agenda_;
    RunLimits limits_;
    std::vector<LaneWork> lanes_;
    double expected_share_ = 1; // share of max_tokens that a row is expected to generate
    double fair_ = 0;           // tokens of each lane once everything has been placed
};

// Whether any lane needs more rows than it has. Cheaper than to make a LaneBalance.
bool any_wants_more(const Lanes &lanes);

} // namespace batchllm
