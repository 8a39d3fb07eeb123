// Output lines -> an append-only file from which a killed job can be resumed.
//
// Beside OUTPUT there is OUTPUT.state: one line of JSON that identifies the job (JobIdentity), then a
// record of 16 bytes for each line of the output, in order: which input line it answers, and a hash of
// the output line. The record is written before the line. So at any moment the state holds at least
// the records of all lines in the output, and a job killed anywhere is resumed by dropping a torn last
// line and the records that have no line. A machine that goes down may lose anything written since the
// last sync, and leave zeros in its place: from the first such place on the rows are run again.
// docs/formats.md has the layout.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cli/job_identity.h"

namespace batchllm::cli {

// Set of input line numbers.
class LineSet {
  public:
    bool contains(int64_t line) const {
        const auto word = static_cast<size_t>(line >> 6);
        return word < words_.size() && (words_[word] >> (line & 63) & 1) != 0;
    }
    // False if it was there already.
    bool insert(int64_t line);

  private:
    std::vector<uint64_t> words_;
};

enum class ExistingOutput : uint8_t { refuse, resume, overwrite };

// Lines to be written together.
class OutputBatch {
  public:
    // The buffer: append one whole line, with its LF, then commit it.
    std::string *text() { return &text_; }
    // If memory runs out here, the line is there as a whole or not at all.
    void commit_line(int64_t input_line, bool failed);

    // Drops what was appended since the last commit: half a line, if memory ran out.
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
    std::vector<size_t> ends_; // in text_
    int64_t failed_ = 0;
};

class OutputFile {
  public:
    // "-" is stdout. A regular file is locked against other runs until it is closed. Anything else (a pipe, a
    // device, an open descriptor) is only written to, and cannot be resumed. identity null: no state is
    // kept (the input is a pipe). input_path: refused if it is the same file. Nothing that exists is
    // changed before start().
    static Result<OutputFile> open(const std::string &path, const std::string &input_path,
                                   ExistingOutput existing, JobIdentity *identity);
    OutputFile(OutputFile &&other) noexcept;
    OutputFile &operator=(OutputFile &&) = delete;
    ~OutputFile();

    // Empties the file, or cuts off what an earlier run left unfinished; call once before append().
    Status start();

    // Writes the batch. On an error (a full disk) the lines that fit are kept, whole. It is an error, here and
    // at sync(), when the path no longer leads to the file.
    // What is written and what is counted agree even when memory runs out here.
    Status append(const OutputBatch &batch);

    // Syncs to the disk: what was written survives a crash of the machine.
    Status sync();

    const LineSet &done() const { return done_; } // by earlier runs
    int64_t resumed_rows() const { return resumed_rows_; }
    int64_t resumed_failed() const { return resumed_failed_; }
    int64_t surplus_lines() const { return surplus_lines_; } // dropped: not in the state, or lost
    int64_t rows_written() const { return rows_written_; }   // by this run
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
    bool regular_ = false; // and named, not only an open descriptor
    bool created_ = false; // by this run, which also holds the lock
    bool started_ = false;
    bool resuming_ = false;
    std::string state_header_; // empty: no state is kept
    int64_t bytes_ = 0;        // of whole lines in the output
    int64_t state_bytes_ = 0;  // of whole records in the state, its first line included
    LineSet done_;
    int64_t resumed_rows_ = 0;
    int64_t resumed_failed_ = 0;
    int64_t surplus_lines_ = 0;
    int64_t rows_written_ = 0;
    int64_t rows_failed_ = 0;
};

} // namespace batchllm::cli
