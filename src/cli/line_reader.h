// A file, pipe or stdin -> numbered lines, in bounded memory.
//
// Lines count from 1 and include blank ones. A line ends with LF or CRLF or at the end of the file;
// a UTF-8 byte order mark at the start of the file is dropped. A line longer than the limit is
// skipped without being held in memory, and reported as too long.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace batchllm::cli {

struct Line {
    int64_t number = 0;
    // Without its line end. Valid until the next call; at least 64 more bytes after it are readable,
    // as the JSON parser requires.
    std::string_view text;
    bool too_long = false; // text is empty then
    bool blank() const;    // nothing but spaces and tabs
};

class LineReader {
  public:
    // "-" is stdin. stop: once set by another thread or a signal, a read that waits for a pipe (or for
    // the writer of a named one) gives up and next() reports the end; may be null.
    static Result<LineReader> open(const std::string &path, int64_t max_line_bytes,
                                   const std::atomic<bool> *stop);
    LineReader(LineReader &&other) noexcept;
    LineReader &operator=(LineReader &&) = delete;
    ~LineReader();

    // False at the end. An error names the file.
    Result<bool> next(Line *line);

    // Replaces open()'s flag; not null if that was not.
    void stop_at(const std::atomic<bool> *stop) { stop_ = stop; }

    // Whether next() has a whole line at hand, and need not read.
    bool line_buffered() const;
    int64_t bytes_read() const { return consumed_; } // up to the end of the last line returned
    bool regular() const { return regular_; }
    int64_t file_bytes() const { return file_bytes_; } // -1: not a regular file

  private:
    LineReader() = default;
    Result<bool> fill(); // reads more after end_; false at the end of the file
    Result<bool> skip_long_line(Line *line);
    void reserve(size_t capacity);

    std::string path_;
    int fd_ = -1;
    bool owned_ = false;
    bool regular_ = false;
    bool end_of_file_ = false;
    bool started_ = false;
    bool stopped_ = false; // the rest of the buffer may be half a line, and is dropped
    int64_t file_bytes_ = -1;
    size_t max_line_bytes_ = 0;
    const std::atomic<bool> *stop_ = nullptr;

    std::unique_ptr<char[]> buffer_; // [capacity_ + padding]; unread bytes are [begin_, end_)
    size_t capacity_ = 0;
    size_t begin_ = 0;
    size_t end_ = 0;
    int64_t consumed_ = 0;
    int64_t number_ = 0;
};

} // namespace batchllm::cli
