// Mistakes that affect a whole job, found before its output is touched. A mistake in only some rows
// is an error of those rows.
#pragma once

#include <string>
#include <vector>

#include "cli/api.h"
#include "cli/row.h"
#include "cli/window.h"

namespace batchllm::cli {

// Checks the parameters of the command line, which are the defaults for all rows.
Status check_options(batchllm_engine *engine, const SamplingOptions &options);

// Fails if the model is a name on the Hugging Face Hub instead of a directory. model: empty if none
// is given.
Status check_model_name(const std::string &model);

// Fails if no row of the job's first window can run and the rows are not to blame: the model lacks
// something, or the file is not JSON Lines. whole_file: the window is not merely what a pipe has
// sent so far.
Status check_first_window(const Window &window, bool whole_file);

// A mistake that no row shows: names in --columns that are keys of no row. "" without any.
// resumed: earlier runs have read rows too.
std::string missing_columns_text(const std::vector<std::string> &missing, bool resumed);

// Failed rows as text for people, equal errors on one line: "input line 3 and 12 more: CODE:
// message".
std::vector<std::string> failure_lines(const std::vector<FailedRow> &failed);

} // namespace batchllm::cli
