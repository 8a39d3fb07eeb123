// Command-line options, shared by several commands, for the engine that runs the rows or would run
// them.
#pragma once

#include <CLI/CLI.hpp>

#include "cli/commands.h"

namespace batchllm::cli {

void add_engine(CLI::App *app, EngineChoice *choice);
void add_prediction(CLI::App *app, PredictionChoice *choice);

} // namespace batchllm::cli
