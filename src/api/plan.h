// The handle of a plan, which engines take and give.
#pragma once

#include <memory>

#include "plan/plan.h"

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

} // namespace batchllm::api
