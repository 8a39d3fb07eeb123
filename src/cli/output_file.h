// The output of `batchllm run`: lines, and the journal from which the job can be resumed.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "cli/api.h"

namespace batchllm::cli {

using JournalHandle = std::unique_ptr<batchllm_journal, FreeWith<batchllm_journal_destroy>>;

// Input lines, numbered from 1, that earlier runs have answered. Any thread may read it as long as
// the output exists.
class DoneLines {
  public:
    DoneLines() = default;
    explicit DoneLines(const batchllm_journal_info &info)
        : bits_(info.done), bytes_(info.done_bytes) {}

    bool contains(int64_t line) const {
        const int64_t row = line - 1;
        return row >> 3 < bytes_ && (bits_[row >> 3] >> (row & 7) & 1) != 0;
    }

  private:
    const uint8_t *bits_ = nullptr;
    int64_t bytes_ = 0;
};

// Lines that are written together.
class OutputBatch {
  public:
    // The buffer: append one whole line with its LF, then call commit_line.
    std::string *text() { return &text_; }
    // If memory runs out here, the batch contains the whole line or nothing of it.
    void commit_line(int64_t input_line, bool failed);
    // Drops what was appended since the last commit: part of a line, if memory ran out.
    void drop_uncommitted() { text_.resize(static_cast<size_t>(offsets_.back())); }

    size_t bytes() const { return text_.size(); }
    bool empty() const { return rows_.empty(); }
    void clear();

  private:
    friend class OutputFile;

    std::string text_;
    std::vector<int64_t> offsets_ = {0}; // [rows + 1]
    std::vector<int64_t> rows_;
    std::vector<uint8_t> failed_; // [rows]
};

class OutputFile {
  public:
    // Nothing that exists is changed before start(). Errors say which option helps.
    static Result<OutputFile> open(const batchllm_journal_options &options);

    // Empties the file, or cuts off what an earlier run left incomplete. Call once before append().
    Status start() { return sync(); }
    // The rows' pictures, before any is read.
    Status use_pictures(const batchllm_pictures *pictures);
    // On an error (a full disk), as many whole lines as fit are kept.
    Status append(const OutputBatch &batch);
    Status sync();

    DoneLines done() const { return DoneLines(info_); }
    const batchllm_journal_info &info() const { return info_; } // after the last call

  private:
    explicit OutputFile(JournalHandle journal) : journal_(std::move(journal)) {}
    Status after(int32_t status);

    JournalHandle journal_;
    batchllm_journal_info info_ = {};
};

} // namespace batchllm::cli
