// Files whose text is the value of an option: a template, a schema, a grammar.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "base/status.h"
#include "cli/output_paths.h"

namespace batchllm::cli {

// The whole file. A pipe is read to its end: on the command line it is the user's own, as with <(command).
Result<std::string> read_option_file(const std::string &path);

// The same within an option's callback: an error is the option's. The path is added to *read.
std::string option_text(const char *option, const std::string &path, std::vector<NamedPath> *read);

} // namespace batchllm::cli
