// Files whose text is the value of an option: a template, a schema, a grammar.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "base/status.h"
#include "cli/output_paths.h"

namespace batchllm::cli {

// The whole file. A pipe is read to its end: on the command line it belongs to the user, as in
// <(command).
Result<std::string> read_option_file(const std::string &path);

// The same inside an option's callback, where an error counts as the option's. The path is added to
// *read.
std::string option_text(const char *option, const std::string &path, std::vector<NamedPath> *read);

} // namespace batchllm::cli
