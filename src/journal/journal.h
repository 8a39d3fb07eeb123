// What makes a job resumable: results as they come -> files from which the job continues after it
// was killed at any moment, or after the machine has crashed.
//
// Results are appended as entries to one file: lines, to the output itself, each the result of one
// row; or blocks, to OUTPUT.blocks, each the results of several rows, from which the caller makes
// the output when all rows are done. OUTPUT.state has a record for each row of an entry, written
// before the entry. To resume, drop a torn last entry and the records without an entry. If the
// machine crashes, anything written since the last sync may be lost or replaced by zeros; from the
// first such place on, the rows are run again.
//
// Lines of rows that failed are dropped from the output as a whole: after a record that says so, a file
// without them replaces it, and then the state is replaced. Between these two the records of failed rows
// have no lines. A run that is killed before may leave that file: it is removed only if there is this
// record, and a line for each other one. Anything else at its path is not ours.
//
// Always: a row is done only if its whole result can be read back, unless the job is complete.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "journal/file_scanner.h"
#include "journal/job_identity.h"
#include "journal/picture_list.h"
#include "journal/results_file.h"
#include "journal/row_set.h"
#include "journal/state_file.h"

namespace batchllm {

struct JournalOptions {
    // retry: resume. Lines of rows that failed are dropped, and these rows run again. With blocks, the
    // output of a complete job with such rows must be what finish() left, and stays locked: the caller
    // takes the results of the other rows from it.
    enum class Existing : uint8_t { refuse, resume, overwrite, retry };

    std::string output; // "-": stdout. Empty: there are no files, and the caller keeps state()
    std::string input;  // a file; empty: none
    std::string model;  // a directory; empty: none
    std::vector<std::pair<std::string, std::string>> parts; // of the identity, besides these two
    Existing existing = Existing::refuse;
    bool blocks = false;       // otherwise lines
    bool keep_state = true;    // false: the output cannot be resumed
    std::string earlier_state; // without an output: what an earlier run's state() was; empty: none
};

class Journal {
  public:
    // A regular file is locked against other runs until the journal is destroyed. Existing files
    // are not changed before the first append() or sync(), except that resuming a complete job
    // removes blocks that were left behind (retrying it, when the journal is destroyed).
    static Result<std::unique_ptr<Journal>> open(const JournalOptions &options);

    // The pictures of the job's rows: which files they are is kept from now on, beside the state. Fails
    // (JOURNAL_MISMATCH) if a file that an earlier run has read is another one now. Call it before rows with
    // pictures are read.
    Status use_pictures(PictureLibrary *pictures);

    // Appends a line for each row, with its LF; offsets: [rows + 1]. On an error (a full disk), as
    // many whole lines as fit are kept. failed: [rows], null: none. It is an error if the path no
    // longer leads to the file. The counts match what has been written even if memory runs out here.
    Status append_lines(std::span<const int64_t> rows, const uint8_t *failed, std::string_view text,
                        std::span<const int64_t> offsets);
    // Appends the results of rows as one block, or nothing of it.
    Status append_block(std::span<const int64_t> rows, const uint8_t *failed,
                        std::string_view bytes);

    int64_t blocks() const { return static_cast<int64_t>(blocks_.size()); }
    // Valid until the next call of the same function.
    Result<std::span<const int64_t>> rows_of_block(int64_t block);
    Result<std::string_view> read_block(int64_t block);

    // Syncs to disk: what has been appended survives a crash of the machine.
    Status sync();

    // The output is made from all blocks, at `path` beside it: gives it its name. Empty: it has its
    // name and is synced. Then removes the blocks.
    Status finish(const std::string &path);

    const RowSet &done() const { return done_; } // by earlier runs; never changes
    int64_t rows_done() const { return rows_done_; }
    int64_t failed_done() const { return failed_done_; }
    int64_t lost() const { return lost_; } // results of earlier runs without a record, or damaged
    int64_t rows_written() const { return rows_written_; } // by this run
    int64_t failed_written() const { return failed_written_; }
    int64_t created() const { return identity_.created; }
    bool started() const { return started_; }
    bool complete() const { return complete_; }
    bool resumable() const { return state_.has_value(); }
    const std::string &state() const { return state_line_; }

  private:
    struct Entry {
        std::string_view bytes; // as in the file
        int64_t rows = 0;
    };
    struct BlockPlace {
        int64_t offset;       // in the file
        int64_t first_record; // in the state
    };
    // Where a block begins, and where the next one would.
    Result<std::pair<BlockPlace, BlockPlace>> place_of(int64_t block) const;

    Journal() = default;
    Status identify(const JournalOptions &options);
    Status compare_with(const JobIdentity &earlier);
    Status open_files(const JournalOptions &options);
    Status resume();
    Result<bool> read_if_complete();
    Status check_output() const;
    Status match_entries();
    Status look_for_made();
    Result<std::optional<Entry>> next_entry(FileScanner *results, int64_t *left) const;
    Status keep_entry(const Entry &entry, std::string_view records);
    Status drop_failed();
    Status begin();
    Status start();
    Status list_pictures();
    Status take_rows(std::span<const int64_t> rows);
    Status cut_torn();
    Status append(std::span<const int64_t> rows, const uint8_t *failed, std::string_view bytes,
                  std::span<const int64_t> ends, const std::string &records);

    bool keep_blocks_ = false;
    bool keep_state_ = false;
    JobIdentity identity_;
    std::string state_line_;
    std::string output_;
    std::string state_path_;
    std::optional<ResultsFile> results_;
    std::optional<StateFile> state_;
    std::vector<std::shared_ptr<ReadPictures>> pictures_; // since each use_pictures()
    std::optional<PictureList> picture_list_;             // of a regular file
    bool resuming_ = false;
    bool retrying_ = false;
    bool replacing_ =
        false; // the lines of failed rows are dropped in this run, or were in the last
    // What is left then.
    std::vector<std::pair<int64_t, int64_t>> kept_parts_; // of the results, in bytes
    std::string kept_records_;
    int64_t dropped_lines_ = 0;   // still in the results
    int64_t dropped_records_ = 0; // of lines that an earlier run dropped, still in the state
    bool made_is_left_ = false;   // the results without them, by a run that was killed
    uint64_t output_hash_ = ResultRecord::no_hash; // of a complete job
    bool started_ = false;
    bool ready_ = false; // start() has succeeded
    bool complete_ = false;
    bool torn_ = false;    // part of a write that failed may follow the whole entries or records
    bool renamed_ = false; // finish() has given the output its name
    int64_t bytes_ = 0;    // of the whole entries
    std::vector<BlockPlace> blocks_;
    std::string read_;
    std::vector<int64_t> read_rows_;

    RowSet done_;
    RowSet written_;
    int64_t rows_done_ = 0;
    int64_t failed_done_ = 0;
    int64_t lost_ = 0;
    int64_t rows_written_ = 0;
    int64_t failed_written_ = 0;
};

} // namespace batchllm
