// argv -> the options of a command, and its exit code. docs/cli.md describes the options.
#pragma once

#include <atomic>

namespace batchllm::cli {

int run_command_line(int argc, char **argv, const std::atomic<bool> &interrupted);

} // namespace batchllm::cli
