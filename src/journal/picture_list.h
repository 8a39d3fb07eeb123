// OUTPUT.pictures: the files of pictures that a job has read, so that it is not resumed with others. A line
// for each, in the order of reading:
//
//     HASH BYTES CHANGED PATH
//
// the hash of its content and of how the model reads it (32 hexadecimal digits), and what tells without
// reading it that it is still the same: its size, and when its inode last changed (ns since 1970; 0: it has
// to be read). In the path, '%' and what is below ' ' are written as %XX.
//
// Always: a picture is listed before the result of any row that has it. A file may be listed more than once.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"
#include "runtime/picture_library.h"

namespace batchllm {

class PictureList {
  public:
    explicit PictureList(std::string path) : path_(std::move(path)) {}
    PictureList(const PictureList &) = delete;
    PictureList &operator=(const PictureList &) = delete;
    ~PictureList();

    // Which of the listed files have another content now, in words; empty: none, or there is no list. Files
    // that are gone, and lines that a crash of the machine has damaged, are passed over.
    Result<std::string> changes(const PictureLibrary &library) const;

    // Fails if something is at its path that is not a file.
    Status check() const;
    // Removes the list of an earlier job.
    Status remove();
    // Appends files, and those that an earlier call could not.
    Status append(std::span<const ReadPicture> files);
    Status sync() const;

  private:
    Status open();

    std::string path_;
    int fd_ = -1;
    int64_t bytes_ = 0;     // of the whole lines
    std::string unwritten_; // lines
};

} // namespace batchllm
