// Checks that a command can write its output files, before hours of work and before any of them is
// touched.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace batchllm::cli {

struct NamedPath {
    const char *option; // "--stats"
    std::string path;   // empty: not given; "-": a standard stream
};

// Files that a command reads or keeps and that no output may replace.
struct KeptPaths {
    std::string input;
    std::string model;                  // directory or file; empty: none
    std::vector<std::string> adapters;  // directories that are adapters or hold some
    std::span<const NamedPath> options; // files that other options name
    std::string state, pictures; // of --output; empty: none. It is fine if they cannot be created
};

// Fails if an output is also a kept file or another output, if its directory does not exist or is
// not writable, or if it is a descriptor that was not open when the program started. Pipes and
// devices may be named several times.
Status check_output_paths(const KeptPaths &kept, std::span<const NamedPath> outputs);

} // namespace batchllm::cli
