// Reads a file front to back through one buffer, in pieces that end with a given byte or have a
// given size.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace batchllm {

class FileScanner {
  public:
    // The descriptor is borrowed; its own offset does not change.
    FileScanner(int fd, std::string path, int64_t offset)
        : fd_(fd), path_(std::move(path)), offset_(offset) {}

    // The bytes up to and including the next `end`; *whole is false if the file ends first. Valid
    // until the next call.
    Result<std::string_view> until(char end, bool *whole);
    // Exactly `bytes` bytes; fewer only at the end of the file.
    Result<std::string_view> exactly(size_t bytes);
    // The same, without moving past them.
    Result<std::string_view> peek(size_t bytes);

  private:
    std::string_view take(size_t bytes);
    Result<bool> fill(); // false at the end of the file

    int fd_;
    std::string path_;
    int64_t offset_;
    std::string buffer_;
    size_t begin_ = 0;
    size_t chunk_ = 4096; // how much to read next; grows, since most state files are small
};

} // namespace batchllm
