#include "journal/results_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "base/file.h"
#include "journal/file_scanner.h"
#include "journal/named_file.h"

namespace batchllm {

namespace {

// Appends [begin, end) of one file to another.
Status copy(const std::string &from_path, int from, int64_t begin, int64_t end,
            const std::string &to_path, int to) {
    constexpr size_t piece = size_t{1} << 20;
    FileScanner scanner(from, from_path, begin);
    while (begin < end) {
        const size_t wanted = static_cast<size_t>(std::min(end - begin, int64_t{piece}));
        ASSIGN_OR_RETURN(const std::string_view bytes, scanner.exactly(wanted));
        if (bytes.size() < wanted)
            return error(BATCHLLM_ERROR_IO, "%s: was truncated while it was copied",
                         from_path.c_str());
        size_t written = 0;
        const int failure = write_all(to, bytes, &written);
        if (failure != 0) return io_error(to_path, "cannot write", failure);
        begin += static_cast<int64_t>(wanted);
    }
    return {};
}

} // namespace

Result<ResultsFile> ResultsFile::open(const std::string &path, const std::string &input_path) {
    ResultsFile file;
    file.path_ = path == "-" ? "stdout" : path;
    const int descriptor = path == "-" ? STDOUT_FILENO : descriptor_named(path);
    if (descriptor >= 0) {
        file.fd_ = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 3);
        if (file.fd_ < 0) return io_error(file.path_, "cannot open");
        return file;
    }
    RETURN_IF_ERROR(file.open_and_lock(input_path));
    return file;
}

// Other runs do the same with the same path. A run that fails removes the file that it created,
// while holding the lock; so a lock counts only while the path still leads to the locked file.
Status ResultsFile::open_and_lock(const std::string &input_path) {
    const char *path = path_.c_str();
    while (true) {
        struct stat info;
        // A pipe that is also opened for reading would never report that its reader has closed it.
        const bool there = ::stat(path, &info) == 0;
        if (!there && errno != ENOENT) return io_error(path_, "cannot stat");
        bool created = false;
        if (there && !S_ISREG(info.st_mode)) {
            fd_ = ::open(path, O_WRONLY | O_CLOEXEC);
        } else {
            fd_ = ::open(path, O_RDWR | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
            created = fd_ >= 0;
            if (!created && errno != EEXIST) return io_error(path_, "cannot create");
            // With a dangling link, the file is created but is not ours to remove.
            const bool link = ::lstat(path, &info) == 0 && S_ISLNK(info.st_mode);
            if (!created) {
                fd_ = ::open(path, O_RDWR | (link ? O_CREAT : 0) | O_APPEND | O_CLOEXEC, 0666);
                if (fd_ < 0 && errno == ENOENT && !link) continue; // removed in the meantime
            }
        }
        if (fd_ < 0 || ::fstat(fd_, &info) != 0) return io_error(path_, "cannot open");
        regular_ = S_ISREG(info.st_mode);
        if (!regular_) return {};
        ASSIGN_OR_RETURN(const bool is_input,
                         input_path.empty() ? Result<bool>(false) : same_file(input_path, fd_));
        if (is_input) return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "%s: is the input", path);
        RETURN_IF_ERROR(lock());
        // Between open and lock, another run may have completed its whole job.
        if (::fstat(fd_, &info) != 0) return io_error(path_, "cannot stat");
        created_ = created && info.st_size == 0;
        ASSIGN_OR_RETURN(const bool named, leads_to(path_, fd_));
        if (named) return find_real_path();
        created_ = false;
        close();
    }
}

Status ResultsFile::lock() {
    if (::flock(fd_, LOCK_EX | LOCK_NB) == 0) {
        process_ = ::getpid();
        return {};
    }
    if (errno != EWOULDBLOCK) return io_error(path_, "cannot lock");
    return error(BATCHLLM_ERROR_STATE, "%s: another run is writing to it", path_.c_str());
}

ResultsFile::ResultsFile(ResultsFile &&other) noexcept
    : path_(std::move(other.path_)), real_path_(std::move(other.real_path_)),
      made_path_(std::move(other.made_path_)), fd_(std::exchange(other.fd_, -1)),
      process_(other.process_), regular_(other.regular_),
      created_(std::exchange(other.created_, false)), kept_(other.kept_) {}

ResultsFile::~ResultsFile() {
    struct stat own, named;
    // It has the lock, as since it created the file.
    if (created_ && !kept_ && process_ == ::getpid() && ::fstat(fd_, &own) == 0 &&
        ::stat(path_.c_str(), &named) == 0 && own.st_dev == named.st_dev &&
        own.st_ino == named.st_ino) {
        ::unlink(path_.c_str());
    }
    if (fd_ >= 0) close();
}

// A child of a fork has the file open as well, and with it the lock, which the parent gives up for both.
void ResultsFile::close() {
    if (process_ == ::getpid()) ::flock(fd_, LOCK_UN);
    ::close(std::exchange(fd_, -1));
}

Status ResultsFile::check_named() const { return regular_ ? check_leads(path_) : Status(); }

Status ResultsFile::check_leads(const std::string &path) const {
    ASSIGN_OR_RETURN(const bool named, leads_to(path, fd_));
    if (named) return {};
    return error(BATCHLLM_ERROR_IO, "%s: was removed, renamed or replaced while the job ran",
                 path.c_str());
}

Status ResultsFile::empty() {
    if (::ftruncate(fd_, 0) != 0) return io_error(path_, "cannot empty");
    RETURN_IF_ERROR(sync());
    return sync_directory_of(path_);
}

Status ResultsFile::keep_only(std::span<const std::pair<int64_t, int64_t>> parts) {
    RETURN_IF_ERROR(check_named());
    struct stat info;
    if (::fstat(fd_, &info) != 0) return io_error(path_, "cannot stat");
    FileDescriptor made(
        ::open(made_path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600));
    if (made.get() < 0) return io_error(made_path_, "cannot create");
    const Status written = [&]() -> Status {
        if (!keep_access(info, made.get())) return io_error(made_path_, "cannot set the mode");
        if (::flock(made.get(), LOCK_EX | LOCK_NB) != 0) return io_error(made_path_, "cannot lock");
        for (const auto &[begin, end] : parts)
            RETURN_IF_ERROR(copy(path_, fd_, begin, end, made_path_, made.get()));
        if (::fsync(made.get()) != 0) return io_error(made_path_, "cannot sync");
        RETURN_IF_ERROR(check_named());
        // A link stays: the file that it leads to is replaced, if that is still this one.
        RETURN_IF_ERROR(check_leads(real_path_));
        if (::rename(made_path_.c_str(), real_path_.c_str()) != 0)
            return io_error(path_, "cannot rename over");
        return {};
    }();
    if (!written.ok()) {
        ::unlink(made_path_.c_str());
        return written;
    }
    ::close(std::exchange(fd_, made.release()));
    return {};
}

Status ResultsFile::remove_made() {
    if (::unlink(made_path_.c_str()) != 0 && errno != ENOENT)
        return io_error(made_path_, "cannot remove");
    return sync_name();
}

Status ResultsFile::find_real_path() {
    std::error_code fault;
    real_path_ = std::filesystem::canonical(path_, fault).string();
    if (fault) return io_error(path_, "cannot find", fault.value());
    made_path_ = real_path_ + ".retry";
    return {};
}

Status ResultsFile::cut(int64_t bytes) {
    if (::ftruncate(fd_, bytes) != 0) return io_error(path_, "cannot cut off a torn line");
    return {};
}

Status ResultsFile::sync() const {
    if (!regular_) return {};
    if (::fdatasync(fd_) != 0) return io_error(path_, "cannot sync");
    return check_named();
}

Status ResultsFile::remove() {
    RETURN_IF_ERROR(check_named());
    if (::unlink(path_.c_str()) != 0) return io_error(path_, "cannot remove");
    created_ = false;
    close();
    return sync_directory_of(path_);
}

} // namespace batchllm
