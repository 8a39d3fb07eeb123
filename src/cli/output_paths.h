// The files that a command is to write -> whether it can write them: checked before hours of work, and
// before any of them is touched.
#pragma once

#include <span>
#include <string>

#include "base/status.h"

namespace batchllm::cli {

struct NamedPath {
    const char *option; // "--stats"
    std::string path;   // empty: not given; "-": a standard stream
};

// What a command reads or keeps, and what no output may replace.
struct KeptPaths {
    std::string input;
    std::string model;                  // directory or file; empty: none
    std::span<const NamedPath> options; // files that other options name
    std::string state; // of --output; empty: none. It need not be possible to make it
};

// An error if one of the outputs is also a kept file or another output, if its directory does not exist
// or cannot be written to, or if it is a descriptor that the program was not started with. A pipe or a
// device may be named several times.
Status check_output_paths(const KeptPaths &kept, std::span<const NamedPath> outputs);

} // namespace batchllm::cli
