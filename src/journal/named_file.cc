#include "journal/named_file.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "journal/file_scanner.h"

namespace batchllm {
namespace {

constexpr size_t compared_bytes = 4096;

bool missing() { return errno == ENOENT || errno == ENOTDIR; }

// Whether both are regular files with the same length and the same end.
Result<bool> end_alike(const std::string &path, int fd, int other) {
    struct stat one, two;
    if (::fstat(fd, &one) != 0 || ::fstat(other, &two) != 0) return io_error(path, "cannot stat");
    if (!S_ISREG(two.st_mode) || one.st_size != two.st_size) return false;
    const int64_t from = std::max(one.st_size - static_cast<int64_t>(compared_bytes), int64_t{0});
    FileScanner own(fd, path, from), found(other, path, from);
    ASSIGN_OR_RETURN(const std::string_view own_end, own.exactly(compared_bytes));
    ASSIGN_OR_RETURN(const std::string_view found_end, found.exactly(compared_bytes));
    return own_end == found_end;
}

} // namespace

Result<bool> same_file(const std::string &path, int fd) {
    struct stat own, found;
    if (::fstat(fd, &own) != 0) return io_error(path, "cannot stat");
    if (::stat(path.c_str(), &found) != 0) {
        if (missing()) return false;
        return io_error(path, "cannot stat");
    }
    return own.st_dev == found.st_dev && own.st_ino == found.st_ino;
}

Result<bool> leads_to(const std::string &path, int fd) {
    ASSIGN_OR_RETURN(const bool same, same_file(path, fd));
    if (same) return true;
    struct stat own;
    if (::fstat(fd, &own) != 0) return io_error(path, "cannot stat");
    if (own.st_nlink == 0) return false;
    // The path may now lead to a FIFO, and opening that must not block.
    const FileDescriptor found(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    if (found.get() < 0 && missing()) return false;
    if (found.get() < 0) return io_error(path, "cannot open");
    ASSIGN_OR_RETURN(const bool alike, end_alike(path, fd, found.get()));
    if (alike) return true;
    // Such a mount may not know yet about data written just now.
    if (::fdatasync(fd) != 0) return io_error(path, "cannot sync");
    return end_alike(path, fd, found.get());
}

} // namespace batchllm
