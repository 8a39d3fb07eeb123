// What is wrong with a whole job, found before its output is touched: a row's error where only some rows have it.
#pragma once

#include <string>
#include <vector>

#include "cli/api.h"
#include "cli/row.h"
#include "cli/window.h"

namespace batchllm::cli {

// The command line's parameters, which hold for all rows that do not say otherwise.
Status check_options(batchllm_engine *engine, const SamplingOptions &options);

// A name on the Hugging Face Hub in place of a model's directory. model: empty if none is given.
Status check_model_name(const std::string &model);

// An error if no row of the job's first window can run, for a reason that is not the rows' own: what the model
// lacks, or a file that is not JSON Lines. whole_file: the window is not what a pipe has sent so far.
Status check_first_window(const Window &window, bool whole_file);

// Rows that failed, for people: equal errors in one line, "input line 3 and 12 more: CODE: message".
std::vector<std::string> failure_lines(const std::vector<FailedRow> &failed);

} // namespace batchllm::cli
