// Where the library caches its measurements of a machine.
#pragma once

#include <string>
#include <string_view>

namespace batchllm {

// $XDG_CACHE_HOME/batchllm/NAME, or ~/.cache/batchllm/NAME; "" if there is no home directory.
// Characters of NAME other than letters, digits and dots become '-'.
std::string cache_path(std::string_view name);

// Writes a file there atomically and creates missing directories. Returns false if it could not be
// written.
bool keep_in_cache(const std::string &path, std::string_view bytes);

} // namespace batchllm
