// The name of a backend -> one backend for each device, or for as many as work as one; and the model that they use.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/gpu/rank_choice.h"
#include "backend/sim/step_cost.h"
#include "model/model.h"
#include "runtime/options.h"

namespace batchllm {

// What steps cost, for drafts; null: none of these options depend on it.
std::shared_ptr<const StepCost> step_cost_on(const BackendInfo &backend, const Model &model,
                                             const EngineOptions &options);

struct LoadedModel {
    // For sim, only the model's description without weights; null for sim without a directory.
    std::unique_ptr<Model> model;
    std::vector<std::unique_ptr<Backend>> backends; // [first_devices()]; borrow the model
    int32_t ranks = 0;                              // that tensor_parallel=auto has become
    double common_prefix_cost = 0; // common_prefix_cost_on(), or a described device's
    // Of the model on these devices, for drafts; null: not known, or no drafts depend on it.
    std::shared_ptr<const StepCost> step_cost;
};

// The options with the number that auto has become, which is logged.
EngineOptions take_ranks(const EngineOptions &options, const RankChoice &choice,
                         LoadedModel *loaded);

// Fails if these are not devices of the cpu backend.
Status check_cpu_devices(const EngineOptions &options);

// auto: cuda if its library and the devices are found; otherwise cpu.
Result<LoadedModel> load_model_and_backend(const EngineOptions &options);

} // namespace batchllm
