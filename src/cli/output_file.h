// Output lines -> an append-only file from which a job can be resumed after it was killed.
//
// OUTPUT.state, beside OUTPUT, starts with one line of JSON that identifies the job (JobIdentity).
// Then it has a record of 16 bytes for each line of the output, in order: which input line it
// answers, and a hash of the output line. The record is written before the line, so the state
// always has at least the records of all lines in the output. To resume a job, wherever it was
// killed, drop a torn last line and the records without a line. If the machine crashes, anything
// written since the last sync may be lost or replaced by zeros; from the first such place on, the
// rows are run again. The layout is in docs/formats.md.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cli/job_identity.h"

namespace batchllm::cli {

// A set of input line numbers.
class LineSet {
  public:
    bool contains(int64_t line) const {
        const auto word = static_cast<size_t>(line >> 6);
        return word < words_.size() && (words_[word] >> (line & 63) & 1) != 0;
    }
    // Returns false if it was already in the set.
    bool insert(int64_t line);

  private:
    std::vector<uint64_t> words_;
};

enum class ExistingOutput : uint8_t { refuse, resume, overwrite };

// Lines that are written together.
class OutputBatch {
  public:
    // The buffer: append one whole line with its LF, then call commit_line.
    std::string *text() { return &text_; }
    // If memory runs out here, the batch contains the whole line or nothing of it.
    void commit_line(int64_t input_line, bool failed);

    // Drops what was appended since the last commit: part of a line, if memory ran out.
    void drop_uncommitted() { text_.resize(ends_.empty() ? 0 : ends_.back()); }

    const std::string &lines() const { return text_; }
    const std::string &records() const { return records_; }
    const std::vector<size_t> &line_ends() const { return ends_; }
    int64_t failed() const { return failed_; }
    bool empty() const { return ends_.empty(); }
    void clear();

  private:
    std::string text_;
    std::string records_;
    std::vector<size_t> ends_; // offsets into text_
    int64_t failed_ = 0;
};

class OutputFile {
  public:
    // "-" is stdout. A regular file is locked against other runs until it is closed. Anything else
    // (a pipe, a device, an open descriptor) is only written to and cannot be resumed. identity
    // null: no state is kept (the input is a pipe). input_path: rejected if it is the same file.
    // Existing files are not changed before start().
    static Result<OutputFile> open(const std::string &path, const std::string &input_path,
                                   ExistingOutput existing, JobIdentity *identity);
    OutputFile(OutputFile &&other) noexcept;
    OutputFile &operator=(OutputFile &&) = delete;
    ~OutputFile();

    // Empties the file, or cuts off what an earlier run left incomplete. Call once before append().
    Status start();

    // Writes the batch. On an error (a full disk), as many whole lines as fit are kept. Here and in
    // sync() it is an error if the path no longer leads to the file.
    // The counts match what has been written even if memory runs out here.
    Status append(const OutputBatch &batch);

    // Syncs to disk: what has been written survives a crash of the machine.
    Status sync();

    const LineSet &done() const { return done_; } // by earlier runs
    int64_t resumed_rows() const { return resumed_rows_; }
    int64_t resumed_failed() const { return resumed_failed_; }
    int64_t surplus_lines() const {
        return surplus_lines_;
    }                                                      // dropped, because they were lost or
                                                           // not in the state
    int64_t rows_written() const { return rows_written_; } // by this run
    int64_t rows_failed() const { return rows_failed_; }
    bool started() const { return started_; }
    bool resumable() const { return state_fd_ >= 0; }

  private:
    OutputFile() = default;
    Status open_file(const std::string &input_path, ExistingOutput existing);
    Status lock_file();
    Status check_named() const;
    Status prepare(ExistingOutput existing, JobIdentity *identity);
    Status start_state();
    Status resume_state(JobIdentity *identity);
    Status match_lines(uint64_t records_begin);

    std::string path_;
    std::string state_path_;
    int fd_ = -1;
    int state_fd_ = -1;
    bool regular_ = false; // and has a name, not only an open descriptor
    bool created_ = false; // by this run, which also holds the lock
    bool started_ = false;
    bool resuming_ = false;
    std::string state_header_; // empty: no state is kept
    int64_t bytes_ = 0;        // of the output's whole lines
    int64_t state_bytes_ = 0;  // of the state's whole records and its first line
    LineSet done_;
    int64_t resumed_rows_ = 0;
    int64_t resumed_failed_ = 0;
    int64_t surplus_lines_ = 0;
    int64_t rows_written_ = 0;
    int64_t rows_failed_ = 0;
};

} // namespace batchllm::cli
