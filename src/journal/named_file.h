// Whether a path leads to a given open file.
#pragma once

#include <string>

#include "base/status.h"

namespace batchllm {

// Whether both have the same device and inode numbers.
Result<bool> same_file(const std::string &path, int fd);

// The same for a regular file on any mount. Some file systems report another inode number each time
// a file is looked up, so different numbers prove nothing as long as any path leads to the open
// file. The file found at the path then decides: it must have the same length and the same end. A
// copy that has replaced the file passes until more is written to the original; if nothing more is
// written, the copy is complete anyway.
Result<bool> leads_to(const std::string &path, int fd);

} // namespace batchllm
