// A plan's rows, before they run -> how long a device will take for them. The engine itself runs
// them on the sim backend with the device's description, using its own planner, scheduler and
// memory management.
#pragma once

#include <cstdint>
#include <string>

#include "backend/sim/device_memory.h"
#include "backend/sim/step_cost.h"
#include "plan/plan.h"
#include "runtime/columns.h"
#include "runtime/options.h"

namespace batchllm {

struct PredictOptions {
    std::string device;          // "h200", "h100", a file of costs, or "": this machine's, measured
    int64_t expected_tokens = 0; // that a row which may end early generates; 0: its max_tokens
};

struct Prediction {
    std::string device;
    int32_t devices = 1;
    double common_prefix_cost = 0; // there, as of batchllm_plan_options
    StepSeconds parts;             // sum over all devices
    WeightBytes weights;           // on each
    batchllm_stats stats;          // of the engine on sim; backend_seconds is the prediction
};

// rows: those of the plan. options: those of the engine that would run them; if no device is named,
// the backend's own is measured. Rows run to max_tokens or to expected_tokens, since nobody knows
// where the model would end them. Constraints are not modelled.
Result<Prediction> predict(const Plan &plan, const Column<int32_t> &rows,
                           const ParamsColumn &params, const EngineOptions &options,
                           const PredictOptions &predicting);

} // namespace batchllm
