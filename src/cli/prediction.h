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

// batchllm_plan_options.common_prefix_cost on the named device. If none is named, and for "here", on an
// H200, where common prefixes cost most, so that the plan suits any device. 0 without a model, for
// a model that cannot be predicted, and for reproducible steps on a named GPU.
Result<double> described_common_prefix_cost(const InputOptions &in, const EngineChoice &engine,
                                            const PredictionChoice &choice);

// For the rows of a window, as in its plan. A scored row counts as its prompt and one generated
// token.
Result<batchllm_prediction> predict_window(const Window &window, const InputOptions &in,
                                           const EngineChoice &engine,
                                           const PredictionChoice &choice);
// For a plan that contains its rows' tokens.
Result<batchllm_prediction> predict_plan(const batchllm_plan *plan, const InputOptions &in,
                                         const EngineChoice &engine,
                                         const PredictionChoice &choice);

// Checks, before any other work, that the device and the model exist, and measures "here". OK if
// nothing is to be predicted.
Status check_prediction(const InputOptions &in, const EngineChoice &engine,
                        const PredictionChoice &choice);

// As the member "predicted".
void append_prediction(JsonObject *object, std::string *out, const batchllm_prediction &of);
// As lines of text, for people.
std::string prediction_text(const batchllm_prediction &of);

} // namespace batchllm::cli
