// Files: mapped for reading, read whole, or written whole so that a reader sees the old file or the
// new one and nothing between. Every error names the path.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace batchllm {

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

// The whole of a regular file of at most `limit` bytes.
Result<std::string> read_file(const std::string &path, size_t limit);

// Writes to a file "path.tmp.<pid>.<number>" beside the target, syncs it, and renames it over the
// target. On an error (a full disk, say) the temporary file is removed and the target is as it was.
// A target that is a pipe or a device is written to as it is.
Status write_file(const std::string &path, std::string_view bytes);

bool file_exists(const std::string &path);
bool is_directory(const std::string &path);

} // namespace batchllm
