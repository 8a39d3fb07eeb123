// Mistakes that affect a whole job, found before its output is touched. If only some rows have one, it is their error.
#pragma once

#include <string>
#include <vector>

#include "cli/api.h"
#include "cli/row.h"
#include "cli/window.h"

namespace batchllm::cli {

// Checks the command line's parameters, which are the defaults of all rows.
Status check_options(batchllm_engine *engine, const SamplingOptions &options);

// Refuses a name on the Hugging Face Hub instead of a model's directory. model: empty if none is given.
Status check_model_name(const std::string &model);

// An error if no row of the job's first window can run and the rows are not to blame: the model lacks something,
// or the file is not JSON Lines. whole_file: the window is not just what a pipe has sent so far.
Status check_first_window(const Window &window, bool whole_file);

// Failed rows as text for people: equal errors in one line, "input line 3 and 12 more: CODE: message".
std::vector<std::string> failure_lines(const std::vector<FailedRow> &failed);

} // namespace batchllm::cli
