#include "cli/option_files.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <sys/stat.h>

#include "base/file.h"

namespace batchllm::cli {
namespace {

constexpr size_t longest = size_t{64} << 20;

Result<std::string> read_pipe(const std::string &path) {
    struct Close {
        void operator()(std::FILE *file) const { std::fclose(file); }
    };
    const std::unique_ptr<std::FILE, Close> file(std::fopen(path.c_str(), "rb"));
    std::string text;
    char block[1 << 16];
    while (file != nullptr && text.size() <= longest) {
        const size_t count = std::fread(block, 1, sizeof block, file.get());
        text.append(block, count);
        if (count < sizeof block) break;
    }
    if (file == nullptr || std::ferror(file.get()) != 0) {
        return error(BATCHLLM_ERROR_IO, "%s: cannot read: %s", path.c_str(), std::strerror(errno));
    }
    if (text.size() <= longest) return text;
    return error(BATCHLLM_ERROR_IO, "%s: larger than %zu bytes", path.c_str(), longest);
}

} // namespace

Result<std::string> read_option_file(const std::string &path) {
    struct stat info;
    if (::stat(path.c_str(), &info) == 0 && S_ISFIFO(info.st_mode)) return read_pipe(path);
    return read_file(path, longest);
}

std::string option_text(const char *option, const std::string &path, std::vector<NamedPath> *read) {
    Result<std::string> text = read_option_file(path);
    if (!text.ok()) throw CLI::ValidationError(option, text.status().message());
    read->push_back({option, path});
    return std::move(text).value();
}

} // namespace batchllm::cli
