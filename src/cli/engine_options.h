// Options that several commands have of the engine that runs rows, or would run them.
#pragma once

#include <CLI/CLI.hpp>

#include "cli/commands.h"

namespace batchllm::cli {

void add_engine(CLI::App *app, EngineChoice *choice);
void add_prediction(CLI::App *app, PredictionChoice *choice);

} // namespace batchllm::cli
