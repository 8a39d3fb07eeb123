// What a plan shares, as text for people and as JSON.
#pragma once

#include <string>

#include "cli/api.h"
#include "cli/json_text.h"

namespace batchllm::cli {

Result<batchllm_plan_advice> plan_advice(const batchllm_plan *plan);
Result<batchllm_plan_stats> plan_stats(const batchllm_plan *plan);

// As members of the object.
void append_plan_stats(JsonObject *object, const batchllm_plan_stats &stats);

// What people want to know about a plan, as lines of text.
std::string describe(const batchllm_plan_stats &stats);

} // namespace batchllm::cli
