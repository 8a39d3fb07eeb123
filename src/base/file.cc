#include "base/file.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <memory>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace batchllm {
namespace {

Status write_bytes(int fd, const std::string &path, std::string_view bytes) {
    size_t written = 0;
    const int failure = write_all(fd, bytes, &written);
    return failure == 0 ? Status() : io_error(path, "cannot write", failure);
}

std::string directory_of(const std::string &path) {
    const size_t slash = path.rfind('/');
    return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

// What the mode of a file allows whatever group another file with the mode has.
mode_t of_any_group(mode_t mode) {
    const mode_t both = (mode >> 3) & mode & S_IRWXO;
    return (mode & S_IRWXU) | both << 3 | both;
}

// Whether a file that replaces this one is to have its access. In a folder where others may put files that they keep, as in
// /tmp, only a file of one's own, and no link, which may be theirs.
bool is_example(const std::string &path, const struct stat &info) {
    struct stat folder, name;
    if (::stat(directory_of(path).c_str(), &folder) == 0 && (folder.st_mode & S_ISVTX) == 0) {
        return true;
    }
    return ::lstat(path.c_str(), &name) == 0 && S_ISREG(name.st_mode) && name.st_nlink == 1 &&
           name.st_uid == ::geteuid() && name.st_ino == info.st_ino && name.st_dev == info.st_dev;
}

constexpr std::string_view temporary_mark = ".tmp.";

// "<pid>.<number>"
bool ends_temporary(std::string_view end) {
    const size_t dot = end.find('.');
    const auto is_number = [](std::string_view text) {
        return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
    };
    return dot != std::string_view::npos && is_number(end.substr(0, dot)) &&
           is_number(end.substr(dot + 1));
}

} // namespace

Status io_error(const std::string &path, const char *what, int code) {
    return error(BATCHLLM_ERROR_IO, "%s: %s: %s", path.c_str(), what, std::strerror(code));
}

int write_all(int fd, std::string_view bytes, size_t *written) noexcept {
    *written = 0;
    while (*written < bytes.size()) {
        const ssize_t part = ::write(fd, bytes.data() + *written, bytes.size() - *written);
        if (part < 0 && errno == EINTR) continue;
        if (part < 0) return errno;
        *written += static_cast<size_t>(part);
    }
    return 0;
}

FileDescriptor::~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
}

Result<FileDescriptor> open_regular(const std::string &path, size_t *size) {
    FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (fd.get() < 0) return io_error(path, "cannot open");
    struct stat info;
    if (::fstat(fd.get(), &info) != 0) return io_error(path, "cannot stat");
    if (!S_ISREG(info.st_mode)) {
        return error(BATCHLLM_ERROR_IO, "%s: not a regular file", path.c_str());
    }
    *size = static_cast<size_t>(info.st_size);
    return fd;
}

bool is_readable_file(const std::string &path) {
    struct stat info;
    if (::stat(path.c_str(), &info) != 0) {
        return errno != ENOENT && errno != ENOTDIR && errno != EACCES && errno != ELOOP &&
               errno != ENAMETOOLONG;
    }
    return S_ISREG(info.st_mode) && (::access(path.c_str(), R_OK) == 0 || errno != EACCES);
}

Result<std::vector<std::string>> names_in(const std::string &directory) {
    const std::unique_ptr<DIR, int (*)(DIR *)> entries(::opendir(directory.c_str()), ::closedir);
    if (entries == nullptr) return io_error(directory, "cannot open");
    std::vector<std::string> names;
    errno = 0;
    while (const dirent *entry = ::readdir(entries.get())) {
        const std::string_view name = entry->d_name;
        if (name != "." && name != "..") names.emplace_back(name);
        errno = 0;
    }
    if (errno != 0) return io_error(directory, "cannot read");
    std::sort(names.begin(), names.end());
    return names;
}

Result<MappedFile> MappedFile::open(const std::string &path) {
    MappedFile file;
    file.path_ = path;
    ASSIGN_OR_RETURN(const FileDescriptor fd, open_regular(path, &file.size_));
    if (file.size_ == 0) return file;
    void *data = ::mmap(nullptr, file.size_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (data == MAP_FAILED) {
        file.size_ = 0;
        return io_error(path, "cannot map");
    }
    file.data_ = static_cast<const std::byte *>(data);
    return file;
}

MappedFile::MappedFile(MappedFile &&other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile &MappedFile::operator=(MappedFile &&other) noexcept {
    std::swap(path_, other.path_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
}

MappedFile::~MappedFile() {
    if (data_ != nullptr) ::munmap(const_cast<std::byte *>(data_), size_);
}

Result<std::string> read_file(const std::string &path, size_t limit) {
    size_t size = 0;
    ASSIGN_OR_RETURN(const FileDescriptor fd, open_regular(path, &size));
    if (size > limit) {
        return error(BATCHLLM_ERROR_IO, "%s: %zu bytes, more than the %zu allowed", path.c_str(),
                     size, limit);
    }
    std::string text(size, '\0');
    size_t done = 0;
    while (done < size) {
        const ssize_t got = ::read(fd.get(), text.data() + done, size - done);
        if (got < 0) {
            if (errno == EINTR) continue;
            return io_error(path, "cannot read");
        }
        if (got == 0) break;
        done += static_cast<size_t>(got);
    }
    text.resize(done);
    return text;
}

Status write_file(const std::string &path, std::string_view bytes) {
    if (path.empty()) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "the path of a file to write is empty");
    }
    struct stat info;
    const bool there = ::stat(path.c_str(), &info) == 0;
    // If the kind of the target cannot be determined, it is not replaced.
    if (!there && errno != ENOENT) return io_error(path, "cannot stat");
    ASSIGN_OR_RETURN(const FileDescriptor named, copy_descriptor_named(path));
    if (named.get() >= 0) return write_bytes(named.get(), path, bytes);
    if (there && !S_ISREG(info.st_mode)) {
        // A rename would replace such a target. If it is a directory, the open fails.
        const FileDescriptor fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
        if (fd.get() < 0) return io_error(path, "cannot open");
        return write_bytes(fd.get(), path, bytes);
    }
    const bool keeps = there && is_example(path, info);
    // An unused name, since another thread may be writing to the same path.
    std::string temporary;
    int raw = -1;
    for (int number = 0; raw < 0; ++number) {
        temporary = path;
        temporary.append(temporary_mark).append(std::to_string(::getpid()));
        temporary.append(".").append(std::to_string(number));
        // That of an existing file may be read by nobody else until it has that file's access; or by nobody whom that kept out.
        const mode_t mode = keeps   ? 0600
                            : there ? 0600 | (of_any_group(info.st_mode) & 0666)
                                    : 0666;
        raw = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
        if (raw < 0 && errno != EEXIST) return io_error(path, "cannot create a file beside it");
    }
    {
        FileDescriptor fd(raw);
        Status status;
        if (keeps && !keep_access(info, fd.get())) status = io_error(path, "cannot keep its mode");
        if (status.ok()) status = write_bytes(fd.get(), path, bytes);
        if (status.ok() && ::fsync(fd.get()) != 0) status = io_error(path, "cannot sync");
        if (!status.ok()) {
            ::unlink(temporary.c_str());
            return status;
        }
    }
    if (::rename(temporary.c_str(), path.c_str()) != 0) {
        Status status = io_error(path, "cannot rename over");
        ::unlink(temporary.c_str());
        return status;
    }
    return sync_directory_of(path);
}

bool keep_access(const struct stat &old, int fd) {
    constexpr mode_t all = S_IRWXU | S_IRWXG | S_IRWXO;
    mode_t mode = old.st_mode & all;
    if (::fchown(fd, old.st_uid, old.st_gid) != 0 &&
        ::fchown(fd, static_cast<uid_t>(-1), old.st_gid) != 0) {
        mode = of_any_group(mode);
    }
    if (::fchmod(fd, mode) == 0) return true;
    const int why = errno;
    struct stat made; // on a file system where all files have one mode, which cannot be set
    if (::fstat(fd, &made) == 0 &&
        ((made.st_mode & all) == mode ||
         ((made.st_mode & all) == (old.st_mode & all) && made.st_gid == old.st_gid))) {
        return true;
    }
    errno = why;
    return false;
}

void remove_temporaries_of(const std::string &path) {
    const std::string directory = directory_of(path);
    const Result<std::vector<std::string>> names = names_in(directory);
    if (!names.ok()) return; // such as one that may be written but not read
    const size_t slash = path.rfind('/');
    std::string begin = slash == std::string::npos ? path : path.substr(slash + 1);
    begin += temporary_mark;
    for (const std::string &name : names.value()) {
        if (!name.starts_with(begin) || !ends_temporary(name.substr(begin.size()))) continue;
        ::unlink((directory + "/" + name).c_str());
    }
}

int descriptor_named(const std::string &path) {
    char own[PATH_MAX], directory[PATH_MAX], target[PATH_MAX];
    if (::realpath("/proc/self/fd", own) == nullptr) return -1;
    std::string name = path;
    constexpr int most_links = 40; // as many as Linux follows
    for (int links = 0; links < most_links; ++links) {
        const size_t slash = name.rfind('/');
        const std::string parent = slash == std::string::npos ? "." : name.substr(0, slash + 1);
        if (::realpath(parent.c_str(), directory) == nullptr) return -1;
        if (std::strcmp(directory, own) == 0) {
            const char *last = name.c_str() + parent.size();
            int number = -1;
            const auto [end, code] = std::from_chars(last, last + std::strlen(last), number);
            return code == std::errc() && *end == '\0' ? number : -1;
        }
        const ssize_t length = ::readlink(name.c_str(), target, sizeof target);
        if (length < 0 || static_cast<size_t>(length) == sizeof target) return -1;
        const std::string_view next(target, static_cast<size_t>(length));
        name = (next.starts_with('/') ? "" : std::string(directory) + "/") + std::string(next);
    }
    return -1;
}

Result<FileDescriptor> copy_descriptor_named(const std::string &path) {
    const int descriptor = descriptor_named(path);
    if (descriptor < 0) return FileDescriptor(-1);
    FileDescriptor copy(::fcntl(descriptor, F_DUPFD_CLOEXEC, 3));
    if (copy.get() < 0) return io_error(path, "cannot open");
    return copy;
}

Status sync_directory_of(const std::string &path) {
    const std::string directory = directory_of(path);
    const FileDescriptor fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    // A directory that may be written but not read cannot be synced.
    if (fd.get() < 0 && errno == EACCES) return {};
    if (fd.get() < 0) return io_error(directory, "cannot open");
    // EINVAL: the file system does not support it.
    if (::fsync(fd.get()) != 0 && errno != EINVAL) return io_error(directory, "cannot sync");
    return {};
}

Result<bool> file_exists(const std::string &path) {
    struct stat info;
    if (::stat(path.c_str(), &info) == 0) return true;
    if (errno != ENOENT && errno != ENOTDIR) return io_error(path, "cannot stat");
    if (::lstat(path.c_str(), &info) == 0) {
        return error(BATCHLLM_ERROR_IO, "%s: a link to a file that is not there", path.c_str());
    }
    if (errno != ENOENT && errno != ENOTDIR) return io_error(path, "cannot stat");
    return false;
}

Result<bool> is_directory(const std::string &path) {
    ASSIGN_OR_RETURN(const bool there, file_exists(path));
    if (!there) return false;
    struct stat info;
    if (::stat(path.c_str(), &info) != 0) return io_error(path, "cannot stat");
    return S_ISDIR(info.st_mode);
}

bool is_git_lfs_pointer(std::string_view begin) {
    return begin.starts_with("version https://git-lfs");
}

Status git_lfs_error(const std::string &path, int32_t code) {
    return error(code, "%s: a pointer of Git LFS, not the file itself: fetch it with git lfs pull",
                 path.c_str());
}

} // namespace batchllm
