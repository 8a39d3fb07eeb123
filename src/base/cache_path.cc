#include "base/cache_path.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "base/file.h"

namespace batchllm {

std::string cache_path(std::string_view name) {
    std::string file(name);
    for (char &c : file) {
        const bool plain =
            (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '.';
        if (!plain) c = '-';
    }
    const char *cache = std::getenv("XDG_CACHE_HOME");
    if (cache != nullptr && cache[0] == '/') return std::string(cache) + "/batchllm/" + file;
    const char *home = std::getenv("HOME");
    if (home != nullptr && home[0] == '/') return std::string(home) + "/.cache/batchllm/" + file;
    return {};
}

bool keep_in_cache(const std::string &path, std::string_view bytes) {
    std::error_code ignored;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
    return write_file(path, bytes).ok();
}

} // namespace batchllm
