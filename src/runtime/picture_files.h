// What rows call pictures -> the bytes of files: paths below the folders that a job names, and
// "data:" URLs.
#pragma once

#include <cstddef>
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
        std::string path; // without links; "": the name is a "data:" URL
        std::vector<std::byte> bytes;
    };
    // Errors: ROW_PICTURE; IO where the disk fails.
    Result<File> read(std::string_view name, int64_t most_bytes) const;
    // The same for a path that read() has returned.
    Result<File> read_again(const std::string &path, int64_t most_bytes) const;

  private:
    Result<File> read_path(const std::string &path, int64_t most_bytes) const;
    bool contains(const std::string &path) const;

    std::vector<std::string> folders_; // without links
};

} // namespace batchllm
