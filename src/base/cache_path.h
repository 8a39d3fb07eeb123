// Where the library keeps what it has found out about a machine.
#pragma once

#include <string>
#include <string_view>

namespace batchllm {

// $XDG_CACHE_HOME/batchllm/NAME, or ~/.cache/batchllm/NAME; "" without a home. Anything in the name but
// letters, digits and dots becomes '-'.
std::string cache_path(std::string_view name);

// Writes a file there, in one piece, with the directories that it needs. False: it is not kept.
bool keep_in_cache(const std::string &path, std::string_view bytes);

} // namespace batchllm
