// A model and the backend it runs on -> what a common prefix costs there
// (PlanOptions::common_prefix_cost).
#pragma once

#include "backend/backend.h"
#include "model/model.h"

namespace batchllm {

// For a backend that computes tensors; 0: unknown, so there are no common prefixes. The device's
// description is costs_of_device(): only its ratio of merges to products matters. Reproducible rows
// on a GPU have no common prefixes, because their last bits would depend on them.
double common_prefix_cost_on(const BackendInfo &backend, const Model &model);

} // namespace batchllm
