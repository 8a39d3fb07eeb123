// What rows call pictures -> the bytes of files: paths below the folders that a job names, and
// "data:" URLs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace batchllm {

class PictureFolders {
  public:
    // Fails (IO) if one is not there.
    static Result<PictureFolders> open(const std::vector<std::string> &folders);

    struct File {
        // From the root on, with links as they were named. "": the name is a "data:" URL.
        std::string path;
        std::vector<std::byte> bytes;
        // When its inode last changed, in ns since 1970. 0: so recently that a change after it was read
        // may have the same time.
        int64_t changed = 0;
    };
    // Errors: ROW_PICTURE; IO where the disk fails.
    Result<File> read(std::string_view name, int64_t most_bytes) const;
    // The same for a path that read() has returned.
    Result<File> read_again(const std::string &path, int64_t most_bytes) const;

    enum class Since : uint8_t { unchanged, unknown, gone };
    // Of a file that had so many bytes when it was read, without reading it.
    static Result<Since> since_read(const std::string &path, int64_t bytes, int64_t changed);

  private:
    bool contains(const std::string &path) const;
    std::string opened(const std::string &path) const;

    // Files are read where a folder was when it was named, and known by what it was called, so that a
    // later run finds out that a link leads elsewhere.
    struct Folder {
        std::string path;  // from the root on
        std::string place; // without links
    };
    std::vector<Folder> folders_;
};

} // namespace batchllm
