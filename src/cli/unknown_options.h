// Arguments that no option takes -> what to say about them.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace batchllm::cli {

// The first argument of a parsed command line that looks like an option but is not one, with the option that was
// probably meant; "" if there is no such argument.
std::string unknown_option(const CLI::App &app);

} // namespace batchllm::cli
