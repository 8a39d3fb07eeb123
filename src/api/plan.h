// The handle of a plan, which engines take and give.
#pragma once

#include <memory>

#include "plan/plan.h"

struct batchllm_plan {
    batchllm::Plan plan;
};

namespace batchllm::api {

inline std::unique_ptr<batchllm_plan> make_plan_handle(Plan plan) {
    return std::make_unique<batchllm_plan>(batchllm_plan{std::move(plan)});
}

} // namespace batchllm::api
