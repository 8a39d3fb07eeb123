// Command-line options for rows: how they are sampled and what their output must look like.
#pragma once

#include <vector>

#include <CLI/CLI.hpp>

#include "cli/output_paths.h"
#include "cli/row.h"

namespace batchllm::cli {

// Parameters that a row may also set itself; these options are the defaults.
void add_sampling(CLI::App *app, SamplingOptions *sampling);
// Only the parameters that a plan depends on: how prompts become tokens, and how long rows may get.
void add_planning(CLI::App *app, SamplingOptions *sampling);

// read: the files that the options name are added to it.
void add_constraints(CLI::App *app, ConstraintText *constraint, std::vector<NamedPath> *read);

} // namespace batchllm::cli
