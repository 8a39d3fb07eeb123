// A model and where it runs -> what a head costs there (PlanOptions::head_cost).
#pragma once

#include "backend/backend.h"
#include "model/model.h"

namespace batchllm {

// On a backend that computes tensors; 0: not known, and so no heads. For any GPU the description of the H200 is used:
// what counts is the ratio of merges to products. Reproducible rows on a GPU have no heads, because their last bits
// would depend on them.
double head_cost_on(const BackendInfo &backend, const Model &model);

} // namespace batchllm
