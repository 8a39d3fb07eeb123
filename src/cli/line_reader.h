// A file, pipe or stdin -> numbered lines, in bounded memory.
//
// Line numbers start at 1 and include blank lines. A line ends with LF or CRLF or at the end of the
// file; a UTF-8 byte order mark at the start of the file is dropped. A line longer than the limit
// is skipped without being kept in memory, and reported as too long.
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
    // Without its line end. Valid until the next call.
    std::string_view text;
    bool too_long = false; // text is then empty
    bool blank() const;    // nothing but spaces and tabs
};

class LineReader {
  public:
    // "-" is stdin. stop: once another thread or a signal sets it, a read that waits for a pipe (or
    // for the writer of a named one) gives up and next() reports the end; may be null.
    static Result<LineReader> open(const std::string &path, int64_t max_line_bytes,
                                   const std::atomic<bool> *stop);
    LineReader(LineReader &&other) noexcept;
    LineReader &operator=(LineReader &&) = delete;
    ~LineReader();

    // False at the end. An error names the file.
    Result<bool> next(Line *line);

    // Replaces the flag passed to open(), which must not have been null if this one is not.
    void stop_at(const std::atomic<bool> *stop) { stop_ = stop; }

    // Whether next() can return a whole line without reading from the file.
    bool line_buffered() const;
    int64_t bytes_read() const { return consumed_; } // up to the end of the line returned last
    bool regular() const { return regular_; }
    int64_t file_bytes() const { return file_bytes_; } // -1: unknown, not a regular file

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
    bool stopped_ = false; // the buffer may end with an incomplete line, which is dropped
    int64_t file_bytes_ = -1;
    size_t max_line_bytes_ = 0;
    const std::atomic<bool> *stop_ = nullptr;

    std::unique_ptr<char[]> buffer_; // [capacity_]; unread bytes are [begin_, end_)
    size_t capacity_ = 0;
    size_t begin_ = 0;
    size_t end_ = 0;
    int64_t consumed_ = 0;
    int64_t number_ = 0;
};

} // namespace batchllm::cli
