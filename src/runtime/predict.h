// A plan's rows, before they run -> how long a device will take for them. The engine itself runs
// them, with its planner, scheduler and memory management, on the sim backend with the device's
// description.
#pragma once

#include <cstdint>
#include <string>

#include "backend/sim/step_cost.h"
#include "plan/plan.h"
#include "runtime/columns.h"
#include "runtime/options.h"

namespace batchllm {

struct PredictOptions {
    std::string device;          // "h200", a file of costs, or "": this machine's, measured
    int64_t expected_tokens = 0; // that a row which may end early generates; 0: its max_tokens
};

struct Prediction {
    std::string device;
    StepSeconds parts;    // of all devices
    batchllm_stats stats; // of the engine that ran on sim; backend_seconds is the prediction
};

// rows: the plan's own. options: those of the engine that would run them; its backend's device is
// measured if none is named. Rows run to max_tokens or to expected_tokens, since it is unknown
// where the model ends them. Constraints are not modelled.
Result<Prediction> predict(const Plan &plan, const Column<int32_t> &rows,
                           const ParamsColumn &params, const EngineOptions &options,
                           const PredictOptions &predicting);

} // namespace batchllm
