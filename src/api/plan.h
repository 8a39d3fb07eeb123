// The handle of a plan, which engines take and return.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "plan/plan.h"
#include "runtime/columns.h"

struct batchllm_plan {
    batchllm::Plan plan;
    std::string advice; // as text
};

namespace batchllm::api {

inline std::unique_ptr<batchllm_plan> make_plan_handle(Plan plan) {
    auto handle = std::make_unique<batchllm_plan>();
    handle->advice = plan.advice.text();
    handle->plan = std::move(plan);
    return handle;
}

// A plan's rows as a column, in the plan's memory or the caller's.
struct PlanRows {
    Column<int32_t> column;
    std::vector<int64_t> kept_offsets; // used if the caller gives none
};

// The caller's rows, or those of a self-contained plan. Empty if there are neither.
Result<std::optional<PlanRows>> rows_of(const Plan &plan, const int32_t *tokens,
                                        const int64_t *offsets);

// What a caller gave, as far as its struct_size goes. An error names the figure that is no figure.
Result<batchllm_prediction> checked_prediction(const char *name, const batchllm_prediction *given);

} // namespace batchllm::api
