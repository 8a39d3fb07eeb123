#include "cli/output_paths.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

namespace batchllm::cli {
namespace {

// A dangling link counts as a file that will be created.
Result<bool> exists(const std::string &path, struct stat *info) {
    if (::stat(path.c_str(), info) == 0) return true;
    if (errno == ENOENT || errno == ENOTDIR) return false;
    return io_error(path, "cannot stat");
}

// Made absolute first, since weakly_canonical returns a relative path unchanged if even its first
// part is missing.
std::filesystem::path canonical(const std::string &path) {
    std::error_code ignored;
    return std::filesystem::weakly_canonical(std::filesystem::absolute(path, ignored), ignored);
}

// Whether both are the same file, or would be once written.
Result<bool> same_file(const std::string &a, const std::string &b) {
    struct stat one, other;
    ASSIGN_OR_RETURN(const bool a_exists, exists(a, &one));
    ASSIGN_OR_RETURN(const bool b_exists, exists(b, &other));
    if (a_exists != b_exists) return false;
    if (a_exists) {
        return S_ISREG(one.st_mode) && one.st_dev == other.st_dev && one.st_ino == other.st_ino;
    }
    return canonical(a) == canonical(b);
}

Status check_directory(const NamedPath &output) {
    struct stat info;
    if (::stat(output.path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
        return error(BATCHLLM_ERROR_IO, "%s: %s: is a directory", output.option,
                     output.path.c_str());
    }
    if (::access(output.path.c_str(), F_OK) == 0) return {}; // replaced or rejected later
    const std::filesystem::path parent = std::filesystem::path(output.path).parent_path();
    if (::access(parent.empty() ? "." : parent.c_str(), W_OK | X_OK) == 0) return {};
    return error(BATCHLLM_ERROR_IO, "%s: %s: cannot create: %s", output.option, output.path.c_str(),
                 std::strerror(errno));
}

// Whether models and adapters have files with such names; other files in the directory may be the user's own.
bool names_model_file(std::string_view name) {
    constexpr std::string_view suffixes[] = {
        ".safetensors",   ".jinja",        ".bin",      ".model",      "config.json",
        "tokenizer.json", "index.json",    "_map.json", "tokens.json", "vocab.json",
        "modules.json",   "template.json", "merges.txt"};
    return std::any_of(std::begin(suffixes), std::end(suffixes),
                       [&](std::string_view suffix) { return name.ends_with(suffix); });
}

// Whether `path` is such a file in `directory` or at most this many levels below it. Does not
// use <filesystem>, whose iterators terminate the process if memory runs out.
Result<bool> has_model_file(const std::string &directory, const std::string &path, int levels) {
    const std::unique_ptr<DIR, int (*)(DIR *)> entries(::opendir(directory.c_str()), ::closedir);
    if (entries == nullptr)
        return false; // not a directory; an unreadable one is reported
                      // elsewhere
    while (const dirent *entry = ::readdir(entries.get())) {
        const std::string_view name = entry->d_name;
        if (name == "." || name == "..") continue;
        const std::string inside = directory + "/" + entry->d_name;
        ASSIGN_OR_RETURN(const bool found, names_model_file(name) ? same_file(path, inside)
                                           : levels > 0 ? has_model_file(inside, path, levels - 1)
                                                        : Result<bool>(false));
        if (found) return true;
    }
    return false;
}

// model: a directory, or a tokenizer.json.
Result<bool> is_model_file(const std::string &path, const std::string &model) {
    if (model.empty()) return false;
    ASSIGN_OR_RETURN(const bool inside, has_model_file(model, path, 1));
    return inside ? Result<bool>(true) : same_file(path, model);
}

// A path that names an open descriptor must name one of the caller's. This program opens its own
// with O_CLOEXEC, which distinguishes them from those that it inherited.
Status check_descriptor(const NamedPath &output) {
    const int descriptor = descriptor_named(output.path);
    if (descriptor < 0) return {};
    const int flags = ::fcntl(descriptor, F_GETFD);
    if (flags >= 0 && (flags & FD_CLOEXEC) == 0) return {};
    return error(BATCHLLM_ERROR_IO, "%s: %s: the program was started without this descriptor",
                 output.option, output.path.c_str());
}

// The file that a path refers to if "-" stands for a stream.
std::string file_of(const std::string &path, const char *stream) {
    return path == "-" ? stream : path;
}

// Describes what the output would replace; "": nothing.
Result<std::string> replaced_by(const NamedPath &output, const KeptPaths &kept,
                                std::span<const NamedPath> before) {
    const std::string path = file_of(output.path, "/dev/stdout");
    ASSIGN_OR_RETURN(const bool input, same_file(path, file_of(kept.input, "/dev/stdin")));
    if (input) return std::string("is the input");
    for (const auto &others : {before, kept.options}) {
        for (const NamedPath &other : others) {
            if (other.path.empty()) continue;
            ASSIGN_OR_RETURN(const bool same, same_file(path, file_of(other.path, "/dev/stdout")));
            if (same) return std::string("is the file of ") + other.option + " too";
        }
    }
    for (const auto &[own, what] :
         {std::pair(kept.state, "its state"), std::pair(kept.pictures, "its list of pictures")}) {
        ASSIGN_OR_RETURN(const bool same, own.empty() ? Result<bool>(false) : same_file(path, own));
        if (same) return std::string("is where --output keeps ") + what;
    }
    ASSIGN_OR_RETURN(const bool model, is_model_file(path, kept.model));
    if (model) return std::string("is a file of the model");
    for (const std::string &directory : kept.adapters) {
        ASSIGN_OR_RETURN(const bool adapter, has_model_file(directory, path, 1));
        if (adapter) return "is a file of an adapter in " + directory;
    }
    return std::string();
}

} // namespace

Status check_output_paths(const KeptPaths &kept, std::span<const NamedPath> outputs) {
    for (size_t i = 0; i < outputs.size(); ++i) {
        const NamedPath &output = outputs[i];
        if (output.path == "-" && std::string_view(output.option) != "--output") {
            return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                         "%s: -: it is a file, and cannot be stdout", output.option);
        }
        if (output.path.empty()) continue;
        if (output.path != "-") RETURN_IF_ERROR(check_descriptor(output));
        ASSIGN_OR_RETURN(const std::string what, replaced_by(output, kept, outputs.first(i)));
        if (!what.empty()) {
            return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "%s: %s: %s", output.option,
                         output.path.c_str(), what.c_str());
        }
        if (output.path != "-") RETURN_IF_ERROR(check_directory(output));
    }
    return {};
}

} // namespace batchllm::cli
