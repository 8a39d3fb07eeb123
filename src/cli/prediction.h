// How long rows will take, before they are run: batchllm_plan_predict for the commands.
#pragma once

#include <string>

#include "cli/api.h"
#include "cli/commands.h"
#include "cli/json_text.h"
#include "cli/window.h"

namespace batchllm::cli {

// The result's strings belong to the options.
batchllm_engine_options engine_options_of(const InputOptions &in, const EngineChoice &choice);
batchllm_engine_options engine_options_of(const InputOptions &in, EngineChoice &&choice) = delete;

// batchllm_plan_options.head_cost on the named device; without one, and for "here", on an H200, where heads cost most,
// so that a plan suits any device. 0 without a model, for a model that cannot be predicted, and for reproducible steps
// on a GPU that is named.
Result<double> described_head_cost(const InputOptions &in, const EngineChoice &engine,
                                   const PredictionChoice &choice);

// For a window's rows, as in its plan. Scored rows count as one token after their prompts.
Result<batchllm_prediction> predict_window(const Window &window, const InputOptions &in,
                                           const EngineChoice &engine,
                                           const PredictionChoice &choice);
// For a plan that holds its rows' tokens.
Result<batchllm_prediction> predict_plan(const batchllm_plan *plan, const InputOptions &in,
                                         const EngineChoice &engine,
                                         const PredictionChoice &choice);

// Checks, before any work, that the device and the model exist. OK if nothing is to be predicted. Measures
// "here".
Status check_prediction(const InputOptions &in, const EngineChoice &engine,
                        const PredictionChoice &choice);

// As the member "predicted".
void append_prediction(JsonObject *object, std::string *out, const batchllm_prediction &of);
// As lines of text, for people.
std::string prediction_text(const batchllm_prediction &of);

} // namespace batchllm::cli
