#include "cli/output_paths.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>

namespace batchllm::cli {
namespace {

Status io_error(const std::string &path, const char *what) {
    return error(BATCHLLM_ERROR_IO, "%s: %s: %s", path.c_str(), what, std::strerror(errno));
}

// A link that leads to nothing is a file to be made.
Result<bool> exists(const std::string &path, struct stat *info) {
    if (::stat(path.c_str(), info) == 0) return true;
    if (errno == ENOENT || errno == ENOTDIR) return false;
    return io_error(path, "cannot stat");
}

// Whether both are one file, or would be once written.
Result<bool> same_file(const std::string &a, const std::string &b) {
    struct stat one, other;
    ASSIGN_OR_RETURN(const bool a_exists, exists(a, &one));
    ASSIGN_OR_RETURN(const bool b_exists, exists(b, &other));
    if (a_exists != b_exists) return false;
    if (a_exists) {
        return S_ISREG(one.st_mode) && one.st_dev == other.st_dev && one.st_ino == other.st_ino;
    }
    std::error_code ignored;
    return std::filesystem::weakly_canonical(a, ignored) ==
           std::filesystem::weakly_canonical(b, ignored);
}

Status check_directory(const NamedPath &output) {
    if (::access(output.path.c_str(), F_OK) == 0) return {}; // to be replaced, or refused in time
    const std::filesystem::path parent = std::filesystem::path(output.path).parent_path();
    if (::access(parent.empty() ? "." : parent.c_str(), W_OK | X_OK) == 0) return {};
    return error(BATCHLLM_ERROR_IO, "%s: %s: cannot create: %s", output.option, output.path.c_str(),
                 std::strerror(errno));
}

} // namespace

Status check_output_paths(const std::string &input, std::span<const NamedPath> outputs) {
    const auto named = [](const std::string &path) { return !path.empty() && path != "-"; };
    for (size_t i = 0; i < outputs.size(); ++i) {
        const NamedPath &output = outputs[i];
        if (output.path == "-" && std::string_view(output.option) != "--output") {
            return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                         "%s: -: it is a file, and cannot be stdout", output.option);
        }
        if (!named(output.path)) continue;
        ASSIGN_OR_RETURN(const bool is_input,
                         named(input) ? same_file(output.path, input) : Result<bool>(false));
        if (is_input) {
            return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "%s: %s: is the input", output.option,
                         output.path.c_str());
        }
        for (const NamedPath &other : outputs.first(i)) {
            if (!named(other.path)) continue;
            ASSIGN_OR_RETURN(const bool same, same_file(output.path, other.path));
            if (!same) continue;
            return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "%s: %s: is the file of %s too",
                         output.option, output.path.c_str(), other.option);
        }
        RETURN_IF_ERROR(check_directory(output));
    }
    return {};
}

} // namespace batchllm::cli
