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

// An error where no row of the job's first window can run, and all for the same reason, which lies in the
// model or in what is missing of it.
Status check_first_window(const Window &window);

// Rows that failed, for people: equal errors in one line, "input line 3 and 12 more: CODE: message".
std::vector<std::string> failure_lines(const std::vector<FailedRow> &failed);

} // namespace batchllm::cli
