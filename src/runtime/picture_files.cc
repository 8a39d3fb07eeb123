#include "runtime/picture_files.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cinttypes>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <filesystem>
#include <memory>
#include <optional>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/printable.h"
#include "text/base64.h"

namespace batchllm {
namespace {

constexpr int64_t nanoseconds = 1'000'000'000;
constexpr int64_t too_recent = 2 * nanoseconds; // coarse clocks of file systems included

int64_t in_nanoseconds(const struct timespec &time) {
    return int64_t{time.tv_sec} * nanoseconds + time.tv_nsec;
}

int64_t time_now() {
    struct timespec now = {};
    ::clock_gettime(CLOCK_REALTIME, &now);
    return in_nanoseconds(now);
}

std::optional<std::string> real_path(const std::string &path) {
    const std::unique_ptr<char, void (*)(void *)> found(::realpath(path.c_str(), nullptr),
                                                        std::free);
    if (found == nullptr) return std::nullopt;
    return std::string(found.get());
}

// Whether the row named something wrong, rather than the disk or the process failing.
bool is_fault_of_name(int number) {
    return number == ENOENT || number == ENOTDIR || number == EACCES || number == EPERM ||
           number == ELOOP || number == ENAMETOOLONG || number == EINVAL || number == ENXIO;
}

Status open_error(const std::string &path, int number) {
    return error(is_fault_of_name(number) ? BATCHLLM_ERROR_ROW_PICTURE : BATCHLLM_ERROR_IO,
                 "%s: %s", in_quotes(path).c_str(), std::strerror(number));
}

// "name:" of a URL; "": it has none.
std::string_view scheme_of(std::string_view name) {
    const size_t colon = name.find("://");
    if (colon == std::string_view::npos) return {};
    const std::string_view scheme = name.substr(0, colon);
    const bool letters = std::all_of(scheme.begin(), scheme.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '+' || c == '.' || c == '-';
    });
    return letters ? scheme : std::string_view();
}

Result<std::vector<std::byte>> read_data_url(std::string_view url, int64_t most_bytes) {
    const size_t comma = url.find(',');
    if (comma == std::string_view::npos || !url.substr(0, comma).ends_with(";base64")) {
        return error(BATCHLLM_ERROR_ROW_PICTURE,
                     "a \"data:\" URL has to be data:image/...;base64,...");
    }
    const std::string_view text = url.substr(comma + 1);
    if (static_cast<int64_t>(text.size() / 4 * 3) > most_bytes) {
        return error(BATCHLLM_ERROR_ROW_PICTURE, "the picture has more than %" PRId64 " bytes",
                     most_bytes);
    }
    std::optional<std::vector<std::byte>> bytes = from_base64(text);
    if (!bytes.has_value())
        return error(BATCHLLM_ERROR_ROW_PICTURE,
                     "the \"data:\" URL of a picture is not valid base64");
    return std::move(*bytes);
}

// "file:///a%20page.png", or "file:/a%20page.png" as Hadoop and Java write it -> "/a page.png". A percent sign that no
// two digits follow stays.
std::string path_of_url(std::string_view url) {
    constexpr std::string_view scheme = "file:", authority = "//", host = "localhost/";
    url.remove_prefix(scheme.size());
    if (url.starts_with(authority)) {
        url.remove_prefix(authority.size());
        if (url.starts_with(host)) url.remove_prefix(host.size() - 1);
    }
    std::string path;
    for (size_t i = 0; i < url.size(); ++i) {
        uint8_t value = 0;
        const char *digits = url.data() + i + 1;
        const bool escaped = url[i] == '%' && url.size() - i > 2 &&
                             std::from_chars(digits, digits + 2, value, 16).ptr == digits + 2;
        path += escaped ? static_cast<char>(value) : url[i];
        if (escaped) i += 2;
    }
    return path;
}

} // namespace

Result<PictureFolders> PictureFolders::open(const std::vector<std::string> &folders) {
    PictureFolders opened;
    for (const std::string &folder : folders) {
        ASSIGN_OR_RETURN(const bool exists, is_directory(folder));
        std::optional<std::string> place = exists ? real_path(folder) : std::nullopt;
        if (!place.has_value()) {
            return error(BATCHLLM_ERROR_IO, "%s: there is no such folder of pictures",
                         in_quotes(folder).c_str());
        }
        std::string path = std::filesystem::absolute(folder);
        while (path.ends_with('/') || path.ends_with("/.")) path.resize(path.rfind('/'));
        opened.folders_.push_back({std::move(path), std::move(*place)});
    }
    return opened;
}

bool PictureFolders::contains(const std::string &path) const {
    return std::any_of(folders_.begin(), folders_.end(), [&](const Folder &folder) {
        const std::string &place = folder.place;
        return path.starts_with(place) &&
               (place.ends_with('/') || path.size() == place.size() || path[place.size()] == '/');
    });
}

// The path, with a folder's place instead of its own path.
std::string PictureFolders::opened(const std::string &path) const {
    for (const Folder &folder : folders_) {
        if (path.starts_with(folder.path + '/')) {
            return folder.place + path.substr(folder.path.size());
        }
    }
    return path;
}

// The place is opened first and then asked where it is, so that what links lead to cannot change in
// between; it is opened for reading only if it is a file in the folders, since to open a device or a pipe
// may have effects.
Result<PictureFolders::File> PictureFolders::read_again(const std::string &path,
                                                        int64_t most_bytes) const {
    const FileDescriptor place(::open(opened(path).c_str(), O_PATH | O_CLOEXEC));
    if (place.get() < 0) return open_error(path, errno);
    const std::string link = "/proc/self/fd/" + std::to_string(place.get());
    std::string found(PATH_MAX, '\0');
    const ssize_t length = ::readlink(link.c_str(), found.data(), found.size());
    if (length < 0) return open_error(path, errno);
    found.resize(static_cast<size_t>(length));
    if (!contains(found)) {
        return error(BATCHLLM_ERROR_ROW_PICTURE,
                     "%s is outside the folders of pictures that the job names",
                     in_quotes(path).c_str());
    }
    struct stat info;
    if (::fstat(place.get(), &info) != 0) return open_error(path, errno);
    if (!S_ISREG(info.st_mode)) {
        return error(BATCHLLM_ERROR_ROW_PICTURE, "%s is %s, not a file", in_quotes(path).c_str(),
                     S_ISDIR(info.st_mode) ? "a folder" : "a device or a pipe");
    }
    const FileDescriptor fd(::open(link.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (fd.get() < 0) return open_error(path, errno);
    if (int64_t{info.st_size} > most_bytes) {
        return error(BATCHLLM_ERROR_ROW_PICTURE,
                     "%s has %" PRId64 " bytes, more than the %" PRId64 " allowed",
                     in_quotes(path).c_str(), int64_t{info.st_size}, most_bytes);
    }
    File file;
    file.path = path;
    file.changed = in_nanoseconds(info.st_ctim);
    if (time_now() - file.changed < too_recent) file.changed = 0;
    file.bytes.resize(static_cast<size_t>(info.st_size));
    size_t done = 0;
    while (done < file.bytes.size()) {
        const ssize_t got = ::read(fd.get(), file.bytes.data() + done, file.bytes.size() - done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return open_error(path, errno);
        if (got == 0) break;
        done += static_cast<size_t>(got);
    }
    file.bytes.resize(done);
    return file;
}

Result<PictureFolders::File> PictureFolders::read(std::string_view name, int64_t most_bytes) const {
    if (name.starts_with("data:")) {
        File file;
        ASSIGN_OR_RETURN(file.bytes, read_data_url(name, most_bytes));
        return file;
    }
    std::string path(name);
    if (name.starts_with("file:/")) {
        path = path_of_url(name);
        // Spark's binaryFile escapes nothing: after one slash, a name may have percent signs of its own.
        const std::string unescaped(name.substr(std::string_view("file:").size()));
        if (!unescaped.starts_with("//") && ::access(opened(unescaped).c_str(), F_OK) == 0) {
            path = unescaped;
        }
    } else if (!scheme_of(name).empty()) {
        return error(BATCHLLM_ERROR_ROW_PICTURE,
                     "%s is not read: pictures are never fetched from a network; save it as a file",
                     in_quotes(name).c_str());
    }
    if (path.empty() || path.find('\0') != std::string::npos) {
        return error(BATCHLLM_ERROR_ROW_PICTURE, "%s is not the name of a picture",
                     in_quotes(name).c_str());
    }
    if (folders_.empty()) {
        return error(BATCHLLM_ERROR_ROW_PICTURE,
                     "%s is a file, and the job names no folder that pictures may be read from "
                     "(image_folders; in the program --images)",
                     in_quotes(path).c_str());
    }
    if (path.front() == '/') return read_again(path, most_bytes);
    for (size_t i = 0; i < folders_.size(); ++i) {
        Result<File> file = read_again(folders_[i].path + '/' + path, most_bytes);
        const bool missing = !file.ok() && file.status().code() == BATCHLLM_ERROR_ROW_PICTURE &&
                             ::access((folders_[i].place + '/' + path).c_str(), F_OK) != 0;
        if (!missing || i + 1 == folders_.size()) return file;
    }
    return error(BATCHLLM_ERROR_ROW_PICTURE, "%s is not there", in_quotes(path).c_str());
}

Result<PictureFolders::Since> PictureFolders::since_read(const std::string &path, int64_t bytes,
                                                         int64_t changed) {
    struct stat info;
    if (::stat(path.c_str(), &info) != 0) {
        const int number = errno;
        if (is_fault_of_name(number)) return Since::gone;
        return open_error(path, number);
    }
    const bool same = int64_t{info.st_size} == bytes && in_nanoseconds(info.st_ctim) == changed;
    return same ? Since::unchanged : Since::unknown;
}

} // namespace batchllm
