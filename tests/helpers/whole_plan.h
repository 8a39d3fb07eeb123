// A plan whose rows are all to run -> a scheduler's queue.
#pragma once

#include <span>
#include <vector>

#include "plan/plan.h"
#include "schedule/scheduler.h"

namespace batchllm {

// requests[i] is the plan's row i; null: it is not computed.
inline Status add_plan(Scheduler &scheduler, const Plan &plan, std::span<Request *const> requests) {
    for (const PlanGroup &group : plan.groups) {
        std::vector<Request *> members;
        for (int64_t i = group.row_begin; i < group.row_end; ++i) {
            members.push_back(requests[static_cast<size_t>(plan.rows[static_cast<size_t>(i)])]);
        }
        RETURN_IF_ERROR(scheduler.add(plan.prefixes, {group.prefix, 0, members}));
    }
    return {};
}

} // namespace batchllm
