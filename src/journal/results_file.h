// The file that a journal appends results to: created or opened, locked against other runs, and
// watched, since what is written to a file without a name is lost when the run ends.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <utility>

#include "base/file.h"
#include "base/status.h"

namespace batchllm {

class ResultsFile {
  public:
    ResultsFile() = default; // no file
    // "-" is stdout. A regular file is locked against other runs until the object is destroyed.
    // Anything else (a pipe, a device, an open descriptor) is only written to. input_path: rejected
    // if it is the same file; empty: none. Existing files are not changed.
    static Result<ResultsFile> open(const std::string &path, const std::string &input_path);
    ResultsFile(ResultsFile &&other) noexcept;
    ResultsFile &operator=(ResultsFile &&) = delete;
    // Removes a file that this object created, or was told to remove, and that was never kept.
    ~ResultsFile();

    bool regular() const { return regular_; } // and has a name, not only an open descriptor
    int fd() const { return fd_; }
    const std::string &path() const { return path_; } // as errors name it

    // From now on the file stays when the object is destroyed.
    void keep() { kept_ = true; }
    // The file is locked, and removed when the object is destroyed, unless another one has replaced it.
    void remove_at_end() { created_ = true; }

    // Fails if the path no longer leads to this file.
    Status check_named() const;

    // Empties the file so that later writes cannot reach the disk before this does.
    Status empty();
    // Replaces the file by one that has only these parts of it, [begin, end) in bytes: at any moment
    // the path leads to one or the other, and both are locked. The new one is synced, but not its name.
    // It is made at made_path(), where nothing may be. On an error the file is as it was.
    Status keep_only(std::span<const std::pair<int64_t, int64_t>> parts);
    // Beside the file itself, wherever a link to it may be.
    const std::string &made_path() const { return made_path_; }
    // Removes what a run that was killed has left there.
    Status remove_made();
    Status sync_name() const { return sync_directory_of(real_path_); }
    // Cuts off what follows the first `bytes` bytes.
    Status cut(int64_t bytes);
    // Syncs to disk: what has been written survives a crash of the machine.
    Status sync() const;
    // Removes the file, under its lock. Later writes are errors.
    Status remove();

  private:
    Status open_and_lock(const std::string &input_path);
    Status lock();
    void close();
    Status find_real_path();
    Status check_leads(const std::string &path) const; // to this file

    std::string path_;
    std::string real_path_; // of a regular file: without links
    std::string made_path_;
    int fd_ = -1;
    pid_t process_ = 0; // that has locked it
    bool regular_ = false;
    bool created_ = false; // by this object, which also holds the lock
    bool kept_ = false;
};

} // namespace batchllm
