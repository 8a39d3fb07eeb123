// Predicts for the commands how long rows will take: batchllm_plan_predict.
#pragma once

#include <string>

#include "cli/api.h"
#include "cli/commands.h"
#include "cli/json_text.h"
#include "cli/window.h"

namespace batchllm::cli {

// The strings in the result belong to the options.
batchllm_engine_options engine_options_of(const InputOptions &in, const EngineChoice &choice);
batchllm_engine_options engine_options_of(const InputOptions &in, EngineChoice &&choice) = delete;

// For the rows of a window, as in its plan. A scored row counts as its prompt and one generated
// token.
Result<batchllm_prediction> predict_window(const Window &window, const InputOptions &in,
                                           const EngineChoice &engine,
                                           const PredictionChoice &choice);

// Checks, before any other work, that the device and the model exist, and measures "here". The
// result is batchllm_plan_options.common_prefix_cost there. If no device is chosen, it is that of an
// H200, where common prefixes cost most, so that the plan suits any device; 0 without a model, and
// for one that cannot be predicted.
Result<double> check_prediction(const InputOptions &in, const EngineChoice &engine,
                                const PredictionChoice &choice);

// As the member "predicted".
void append_prediction(JsonObject *object, std::string *out, const batchllm_prediction &of);
// As lines of text, for people.
std::string prediction_text(const batchllm_prediction &of);

} // namespace batchllm::cli
