// A path and an open file -> whether the path leads to that file.
#pragma once

#include <string>

#include "base/status.h"

namespace batchllm::cli {

// Whether device and number of both are the same.
Result<bool> same_file(const std::string &path, int fd);

// The same for a regular file on any mount; some give a file another number each time it is looked up. So different
// numbers prove nothing while any name leads to the open file: then what is found at the path decides, which must be
// as long and have the same end. A copy that has replaced the file passes until more is written to it. Where nothing
// more is, the copy has everything.
Result<bool> leads_to(const std::string &path, int fd);

} // namespace batchllm::cli
