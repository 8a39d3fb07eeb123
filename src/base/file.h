// Files: mapped for reading, read as a whole, or written atomically, so that a reader sees either
// the old file or the new one. Every error names the path.
#pragma once

#include <cerrno>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <sys/stat.h>
#include <utility>
#include <vector>

#include "base/status.h"

namespace batchllm {

// An open file, closed with the object.
class FileDescriptor {
  public:
    explicit FileDescriptor(int fd) : fd_(fd) {}
    FileDescriptor(FileDescriptor &&other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    FileDescriptor &operator=(FileDescriptor &&) = delete;
    ~FileDescriptor();
    int get() const { return fd_; }
    int release() { return std::exchange(fd_, -1); }

  private:
    int fd_;
};

// IO: the path, what could not be done, and why. The Python package reads number and path back from
// this form: bindings/python/batchllm/errors.py.
Status io_error(const std::string &path, const char *what, int code = errno);

// Writes everything. On an error, sets *written to the number of bytes written before it and
// returns errno, else 0.
int write_all(int fd, std::string_view bytes, size_t *written) noexcept;

// Opens a regular file for reading and returns its size. Anything else is an error: a directory, a
// device, or a FIFO, which would block until a writer opens it.
Result<FileDescriptor> open_regular(const std::string &path, size_t *size);

// Whether there is a regular file that this process may read, as far as it is known: true if that cannot be found out. So if
// reading one failed, the disk or the process did, and not the path.
bool is_readable_file(const std::string &path);

// The names in a directory, sorted, without "." and "..".
Result<std::vector<std::string>> names_in(const std::string &directory);

// A regular file mapped read-only. The bytes stay valid while the object lives. A file that another
// process truncates while it is mapped raises SIGBUS on access, as with any mapping: callers map
// only files that are not being written.
class MappedFile {
  public:
    static Result<MappedFile> open(const std::string &path);

    MappedFile(MappedFile &&other) noexcept;
    MappedFile &operator=(MappedFile &&other) noexcept;
    MappedFile(const MappedFile &) = delete;
    MappedFile &operator=(const MappedFile &) = delete;
    ~MappedFile();

    std::span<const std::byte> bytes() const { return {data_, size_}; }
    const std::string &path() const { return path_; }

  private:
    MappedFile() = default;
    std::string path_;
    const std::byte *data_ = nullptr;
    size_t size_ = 0;
};

// Reads a whole regular file of at most `limit` bytes.
Result<std::string> read_file(const std::string &path, size_t limit);

// Writes to a file "path.tmp.<pid>.<number>" beside the target, syncs it, renames it over the target
// and syncs the directory. On an error (such as a full disk) the temporary file is removed and the
// target stays as it was. The new file has the access of the one that it replaces (keep_access);
// a link is replaced by a file with the access of the one that it led to. In a folder like /tmp,
// where another user may have put such a file or link, it has the mode of a new file, without what
// the old one did not allow. A pipe, a device or an open
// descriptor (descriptor_named) is written to directly.
Status write_file(const std::string &path, std::string_view bytes);
// Gives a file that is to replace `old` its mode and, where this process may, its owner and group.
// Without its group, the file allows members of any group only what both its group and all others
// were allowed. False: the mode cannot be set, and errno says why.
bool keep_access(const struct stat &old, int fd);
// Removes such temporary files, as killed processes leave them, where it can. For a caller whose lock keeps
// all others from writing to the path: whether a process of another machine is alive cannot be asked.
void remove_temporaries_of(const std::string &path);

// The open descriptor of this process that the path names, directly or through a link: 1 for
// "/dev/stdout", 3 for "/dev/fd/3". -1: the path names none. Such a file belongs to whoever opened
// it, so it is written through the descriptor and neither replaced nor read back.
int descriptor_named(const std::string &path);
// Duplicates that descriptor; the copy shares its file position. -1: the path names none.
Result<FileDescriptor> copy_descriptor_named(const std::string &path);

// Syncs the directory that holds the path, so that a file created or renamed there survives a crash
// of the machine.
Status sync_directory_of(const std::string &path);

// Whether bytes are what Git LFS leaves in place of a file that it has not fetched, and the error that says so.
bool is_git_lfs_pointer(std::string_view begin);
Status git_lfs_error(const std::string &path, int32_t code);

// Whether anything exists at the path: a file, a directory, or the target of a link. Fails if that
// cannot be determined (no permission, a failing disk) and for a dangling link: a file that exists
// but cannot be reached must not be treated as missing.
Result<bool> file_exists(const std::string &path);
// The same for a directory: false if the path is anything else, or missing.
Result<bool> is_directory(const std::string &path);

} // namespace batchllm
