// Arguments that match no option -> what to say about them.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace batchllm::cli {

// The first argument that looks like an option but is not one, with a suggestion; "" if there is no
// such argument. The command line must have been parsed.
std::string unknown_option(const CLI::App &app);

// Where to read which options a command has.
std::string where_options_are(const CLI::App &command);

} // namespace batchllm::cli
