#include "journal/journal.h"

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <set>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/file.h"
#include "base/printable.h"
#include "journal/file_hash.h"
#include "journal/word.h"

namespace batchllm {
namespace {

// A block starts with the number of its bytes that follow these two, and of its rows.
constexpr size_t block_head = 16;

uint64_t hash_of(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

Result<int64_t> size_of(const std::string &path, int fd) {
    struct stat info;
    if (::fstat(fd, &info) != 0) return io_error(path, "cannot stat");
    return int64_t{info.st_size};
}

// Whether there is an output that is not empty. It must be able to get its name by a rename.
Result<bool> has_output(const std::string &path) {
    const Status no_name =
        error(BATCHLLM_ERROR_INVALID_ARGUMENT,
              "%s: not a regular file: the output appears in one piece, under its own name",
              path.c_str());
    if (path == "-" || descriptor_named(path) >= 0) return no_name;
    ASSIGN_OR_RETURN(const bool there, file_exists(path));
    if (!there) return false;
    struct stat info;
    if (::stat(path.c_str(), &info) != 0) return io_error(path, "cannot stat");
    if (S_ISDIR(info.st_mode)) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "%s: is a directory", path.c_str());
    }
    if (!S_ISREG(info.st_mode)) return no_name;
    return info.st_size > 0;
}

// Fails if the output, or what is kept beside it, which would be replaced, is the input.
Status refuse_input(const std::string &output, const std::string &input) {
    struct stat one, other;
    if (input.empty() || ::stat(output.c_str(), &one) != 0 || ::stat(input.c_str(), &other) != 0 ||
        one.st_dev != other.st_dev || one.st_ino != other.st_ino) {
        return {};
    }
    return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "%s: is the input", output.c_str());
}

// As a complete record has it.
Result<uint64_t> hash_of_output(const std::string &path) {
    ASSIGN_OR_RETURN(const uint64_t hash, hash_file(path));
    return std::max(hash, ResultRecord::least_output_hash);
}

Status no_state(const std::string &path) {
    return error(BATCHLLM_ERROR_JOURNAL_FORMAT,
                 "%s: not found, so it is not known which rows are done", path.c_str());
}

} // namespace

Result<std::unique_ptr<Journal>> Journal::open(const JournalOptions &options) {
    std::unique_ptr<Journal> journal(new Journal);
    journal->keep_blocks_ = options.blocks;
    journal->keep_state_ = options.keep_state;
    journal->output_ = options.output;
    journal->state_path_ = options.output + ".state";
    journal->identity_.created = static_cast<int64_t>(std::time(nullptr));
    if (options.keep_state) {
        RETURN_IF_ERROR(journal->identify(options));
    } else if (options.blocks || options.output.empty() ||
               options.existing == JournalOptions::Existing::resume ||
               options.existing == JournalOptions::Existing::retry) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "a journal that keeps no state has lines, and cannot be resumed");
    }
    journal->retrying_ = options.existing == JournalOptions::Existing::retry;
    if (journal->retrying_ && options.output.empty()) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "only rows whose results are in a file can be tried again");
    }
    if (!options.output.empty()) {
        RETURN_IF_ERROR(journal->open_files(options));
    } else if (!options.earlier_state.empty()) {
        ASSIGN_OR_RETURN(const JobIdentity earlier,
                         JobIdentity::from_json("earlier_state", options.earlier_state));
        RETURN_IF_ERROR(journal->compare_with(earlier));
    }
    if (options.keep_state) journal->state_line_ = journal->identity_.to_json() + "\n";
    return journal;
}

Status Journal::identify(const JournalOptions &options) {
    if (options.model.empty()) {
        identity_.add("model config.json", "none");
    } else {
        RETURN_IF_ERROR(add_model_parts(&identity_, options.model));
    }
    if (!options.input.empty()) RETURN_IF_ERROR(add_input_parts(&identity_, options.input));
    for (const auto &[name, value] : options.parts) {
        if (!is_utf8(name) || !is_utf8(value)) {
            return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "the part %s of the job is not UTF-8",
                         in_quotes(name).c_str());
        }
        identity_.add(name, value);
    }
    std::set<std::string_view> names;
    for (const auto &[name, value] : identity_.parts) {
        if (names.insert(name).second) continue;
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "the job has two parts %s",
                     in_quotes(name).c_str());
    }
    return {};
}

Status Journal::compare_with(const JobIdentity &earlier) {
    const std::string differences = identity_.differences(earlier);
    if (!differences.empty()) {
        return error(BATCHLLM_ERROR_JOURNAL_MISMATCH, "%scannot resume: not the same job: %s",
                     output_.empty() ? "" : (output_ + ": ").c_str(), differences.c_str());
    }
    identity_.created = earlier.created;
    return {};
}

Status Journal::open_files(const JournalOptions &options) {
    const bool resumed = options.existing == JournalOptions::Existing::resume || retrying_;
    const bool refused = options.existing == JournalOptions::Existing::refuse;
    bool there = false; // an output apart from the results
    if (keep_blocks_) {
        ASSIGN_OR_RETURN(there, has_output(output_));
        RETURN_IF_ERROR(refuse_input(output_, options.input));
    }
    ASSIGN_OR_RETURN(
        ResultsFile results,
        ResultsFile::open(keep_blocks_ ? output_ + ".blocks" : output_, options.input));
    results_.emplace(std::move(results));
    if (!results_->regular()) {
        if (!resumed && !keep_blocks_) return {};
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "%s: not a regular file: nothing can be read back and resumed",
                     results_->path().c_str());
    }
    picture_list_.emplace(output_ + ".pictures");
    for (const std::string &kept : {state_path_, output_ + ".pictures", results_->made_path()}) {
        RETURN_IF_ERROR(refuse_input(kept, options.input));
    }
    RETURN_IF_ERROR(picture_list_->check());
    ASSIGN_OR_RETURN(const int64_t bytes, size_of(results_->path(), results_->fd()));
    if (resumed) {
        ASSIGN_OR_RETURN(const bool has_state, file_exists(state_path_));
        if (has_state) return resume();
        if (bytes > 0 || there) return no_state(state_path_);
    }
    if (refused && (bytes > 0 || there)) {
        return error(BATCHLLM_ERROR_JOURNAL_EXISTS, "%s: exists",
                     there ? output_.c_str() : results_->path().c_str());
    }
    return {};
}

Status Journal::resume() {
    resuming_ = true;
    JobIdentity earlier;
    ASSIGN_OR_RETURN(StateFile state, StateFile::open(state_path_, &earlier));
    RETURN_IF_ERROR(compare_with(earlier));
    if (identity_.parts != earlier.parts) { // what has come since must not change from now on
        ASSIGN_OR_RETURN(const int64_t records, state.count());
        ASSIGN_OR_RETURN(const std::string read, state.read(0, records));
        ASSIGN_OR_RETURN(StateFile renewed, StateFile::create(state_path_, identity_, read));
        state_.emplace(std::move(renewed));
    } else {
        state_.emplace(std::move(state));
    }
    ASSIGN_OR_RETURN(complete_, read_if_complete());
    if (!complete_) {
        RETURN_IF_ERROR(match_entries());
        return keep_blocks_ ? Status() : look_for_made();
    }
    if (retrying_ && failed_done_ > 0) {
        RETURN_IF_ERROR(check_output());
        results_->remove_at_end();
        return {};
    }
    // What was just created, or left by a run that was killed while it removed or replaced it.
    remove_temporaries_of(state_path_);
    return results_->remove();
}

Status Journal::use_pictures(PictureLibrary *pictures) {
    if (!picture_list_.has_value() || !keep_state_) return {};
    if (resuming_) {
        ASSIGN_OR_RETURN(const std::string changes, picture_list_->changes(*pictures));
        if (!changes.empty()) {
            return error(BATCHLLM_ERROR_JOURNAL_MISMATCH, "%s: cannot resume: not the same job: %s",
                         output_.c_str(), changes.c_str());
        }
    }
    pictures_.push_back(pictures->keep_read());
    return {};
}

// Before the results of rows that have them.
Status Journal::list_pictures() {
    if (!state_.has_value()) return {};
    for (const auto &read : pictures_) RETURN_IF_ERROR(picture_list_->append(read->take()));
    return {};
}

// Whether the output is complete. Then the records alone say what is in it.
Result<bool> Journal::read_if_complete() {
    if (!keep_blocks_) return false;
    ASSIGN_OR_RETURN(const bool there, has_output(output_));
    if (!there) return false;
    FileScanner records = state_->records();
    RowSet rows;
    int64_t count = 0, failed = 0;
    while (true) {
        ASSIGN_OR_RETURN(const std::string_view bytes, records.exactly(ResultRecord::bytes));
        if (bytes.size() < ResultRecord::bytes) return false;
        const ResultRecord record = ResultRecord::read(bytes);
        if (record.kind == ResultRecord::Kind::complete) {
            output_hash_ = record.hash;
            break;
        }
        if (record.kind != ResultRecord::Kind::row || !rows.insert(record.row)) return false;
        ++count;
        failed += record.failed ? 1 : 0;
    }
    done_ = std::move(rows);
    rows_done_ = count;
    failed_done_ = failed;
    return true;
}

// Fails if the output of a complete job is not what finish() has left: the state does not say which row is
// where in it.
Status Journal::check_output() const {
    if (output_hash_ == ResultRecord::no_hash) {
        return error(BATCHLLM_ERROR_JOURNAL_FORMAT,
                     "%s: an earlier version, which does not note what it writes, has finished the "
                     "output, so its rows cannot be told apart",
                     state_path_.c_str());
    }
    ASSIGN_OR_RETURN(const uint64_t hash, hash_of_output(output_));
    if (hash == output_hash_) return {};
    return error(BATCHLLM_ERROR_JOURNAL_FORMAT,
                 "%s: is not what the job wrote, so its rows cannot be told apart",
                 output_.c_str());
}

// The next entry of the results; none if the file ends before its end. left: bytes of the file that
// have not been read.
Result<std::optional<Journal::Entry>> Journal::next_entry(FileScanner *results,
                                                          int64_t *left) const {
    Entry entry;
    if (!keep_blocks_) {
        bool whole = false;
        ASSIGN_OR_RETURN(entry.bytes, results->until('\n', &whole));
        entry.rows = 1;
        return whole ? std::optional<Entry>(entry) : std::nullopt;
    }
    ASSIGN_OR_RETURN(const std::string_view head, results->peek(block_head));
    if (head.size() < block_head) return std::optional<Entry>();
    const uint64_t bytes = read_word(head.data());
    const uint64_t rows = read_word(head.data() + 8);
    // What was lost reads as zeros, and may be part of a number.
    const uint64_t most_bytes = static_cast<uint64_t>(std::max<int64_t>(*left, 16)) - block_head;
    if (bytes > most_bytes || rows == 0 || rows > ResultRecord::most_rows) {
        return std::optional<Entry>();
    }
    ASSIGN_OR_RETURN(entry.bytes, results->exactly(block_head + static_cast<size_t>(bytes)));
    entry.rows = static_cast<int64_t>(rows);
    if (entry.bytes.size() < block_head + bytes) return std::optional<Entry>();
    *left -= static_cast<int64_t>(entry.bytes.size());
    return std::optional<Entry>(entry);
}

// Pairs the entries with the state's records. start() cuts off those without a partner.
Status Journal::match_entries() {
    FileScanner results(results_->fd(), results_->path(), 0);
    FileScanner state = state_->records();
    ASSIGN_OR_RETURN(const bool dropping, state_->dropping());
    replacing_ = !keep_blocks_ && (retrying_ || dropping);
    ASSIGN_OR_RETURN(int64_t left, size_of(results_->path(), results_->fd()));
    int64_t lost = 0;
    while (true) {
        ASSIGN_OR_RETURN(const std::optional<Entry> entry, next_entry(&results, &left));
        if (!entry.has_value() || (keep_blocks_ && lost > 0)) break; // torn, or the end
        if (lost > 0) {
            ++lost;
            continue;
        }
        const size_t wanted = static_cast<size_t>(entry->rows) * ResultRecord::bytes;
        const uint64_t hash = hash_of(entry->bytes);
        ASSIGN_OR_RETURN(std::string_view records, state.exactly(wanted));
        while (dropping && !keep_blocks_ && records.size() == wanted) {
            const ResultRecord record = ResultRecord::read(records);
            if (record.kind != ResultRecord::Kind::row || !record.failed || record.hash == hash)
                break;
            ++dropped_records_;
            ASSIGN_OR_RETURN(records, state.exactly(wanted));
        }
        if (records.size() < wanted) {
            // Only a crash of the machine can leave results without records. They are run again.
            lost = entry->rows;
            continue;
        }
        bool zeros = !keep_blocks_ && entry->bytes.find('\0') != std::string_view::npos;
        bool same = true;
        for (size_t at = 0; at < wanted; at += ResultRecord::bytes) {
            const ResultRecord record = ResultRecord::read(records.substr(at, ResultRecord::bytes));
            zeros |= record.kind == ResultRecord::Kind::lost;
            same &= record.hash == hash;
        }
        if (!zeros && !same && !keep_blocks_) {
            // A lost block may begin or end inside a record.
            ASSIGN_OR_RETURN(const std::string_view next, state.exactly(ResultRecord::bytes));
            zeros = next.find_first_not_of('\0') == std::string_view::npos;
            if (!zeros) {
                return error(BATCHLLM_ERROR_JOURNAL_FORMAT,
                             "%s: line %" PRId64 " is not what an earlier run wrote there",
                             results_->path().c_str(), rows_done_ + 1);
            }
        }
        if (zeros || !same) {
            lost = entry->rows;
            continue;
        }
        RETURN_IF_ERROR(keep_entry(*entry, records));
    }
    lost_ = lost;
    return {};
}

// What is at the path where the results without the lines of failed rows are made.
Status Journal::look_for_made() {
    const std::string &path = results_->made_path();
    struct stat info;
    if (::lstat(path.c_str(), &info) != 0) return {}; // keep_only() never replaces anything
    ASSIGN_OR_RETURN(const bool dropping, state_->dropping());
    ASSIGN_OR_RETURN(const int64_t records, state_->count());
    // Then the results had not been replaced yet.
    const bool all_lines = dropped_records_ == 0 && state_->kept() == records - 1;
    made_is_left_ = dropping && all_lines && S_ISREG(info.st_mode);
    if (made_is_left_ || dropped_lines_ == 0) return {};
    return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                 "%s: exists, and is not of this job, which writes its output there without the "
                 "rows that failed: move it away",
                 path.c_str());
}

Status Journal::keep_entry(const Entry &entry, std::string_view records) {
    if (keep_blocks_) blocks_.push_back({bytes_, rows_done_});
    const int64_t begin = bytes_;
    bytes_ += static_cast<int64_t>(entry.bytes.size());
    const ResultRecord first = ResultRecord::read(records.substr(0, ResultRecord::bytes));
    if (retrying_ && !keep_blocks_ && first.kind == ResultRecord::Kind::row && first.failed) {
        ++dropped_lines_;
        state_->keep(rows_done_ + dropped_lines_ + dropped_records_);
        return {};
    }
    if (replacing_) {
        const bool follows = !kept_parts_.empty() && kept_parts_.back().second == begin;
        if (!follows) kept_parts_.emplace_back(begin, begin);
        kept_parts_.back().second = bytes_;
        kept_records_ += records;
    }
    for (; !records.empty(); records.remove_prefix(ResultRecord::bytes)) {
        const ResultRecord record = ResultRecord::read(records.substr(0, ResultRecord::bytes));
        if (record.kind != ResultRecord::Kind::row || !done_.insert(record.row)) {
            return error(BATCHLLM_ERROR_JOURNAL_FORMAT, "%s: damaged at record %" PRId64,
                         state_path_.c_str(), rows_done_ + 1);
        }
        ++rows_done_;
        failed_done_ += record.failed ? 1 : 0;
    }
    state_->keep(rows_done_ + dropped_lines_ + dropped_records_);
    return {};
}

// What every call that writes does first.
Status Journal::begin() {
    if (!results_.has_value() || complete_) {
        return error(BATCHLLM_ERROR_STATE, "the journal %s",
                     complete_ ? "is complete" : "has no output");
    }
    if (!ready_) RETURN_IF_ERROR(start());
    ready_ = true;
    return results_->check_named();
}

Status Journal::start() {
    // As long as lines are to be dropped, the results are as they were.
    if (dropped_lines_ == 0) started_ = true;
    results_->keep();
    if (!results_->regular()) return {};
    remove_temporaries_of(state_path_);
    if (resuming_) {
        // Before the record that tells that it is ours is gone.
        if (made_is_left_) RETURN_IF_ERROR(results_->remove_made());
        made_is_left_ = false;
        RETURN_IF_ERROR(results_->cut(bytes_));
        // Records of lines that are not there are understood as long as the last record says so.
        if (dropped_records_ == 0) RETURN_IF_ERROR(state_->cut());
        if (dropped_lines_ + dropped_records_ > 0) RETURN_IF_ERROR(drop_failed());
        kept_parts_ = {};
        kept_records_ = {};
        RETURN_IF_ERROR(state_->sync());
        return results_->sync();
    }
    // Later writes must not reach the disk before this.
    RETURN_IF_ERROR(results_->empty());
    RETURN_IF_ERROR(picture_list_->remove());
    if (keep_state_) {
        ASSIGN_OR_RETURN(StateFile state, StateFile::create(state_path_, identity_));
        state_.emplace(std::move(state));
        return {};
    }
    if (::unlink(state_path_.c_str()) != 0 && errno != ENOENT) {
        return io_error(state_path_, "cannot remove");
    }
    return {};
}

// Drops the lines of rows that failed, and records of lines that an earlier run has dropped. May be
// repeated if it fails, in this run or the next.
Status Journal::drop_failed() {
    if (dropped_lines_ > 0) {
        ResultRecord dropping;
        dropping.kind = ResultRecord::Kind::dropping;
        std::string record;
        dropping.append_to(&record);
        RETURN_IF_ERROR(results_->sync()); // if there is this record, the lines are there
        RETURN_IF_ERROR(state_->append(record));
        RETURN_IF_ERROR(state_->sync());
        RETURN_IF_ERROR(results_->keep_only(kept_parts_));
        started_ = true;
        bytes_ = 0;
        for (const auto &[begin, end] : kept_parts_) bytes_ += end - begin;
        dropped_records_ += std::exchange(dropped_lines_, 0);
    }
    RETURN_IF_ERROR(results_->sync_name()); // before the records are gone
    ASSIGN_OR_RETURN(StateFile state, StateFile::create(state_path_, identity_, kept_records_));
    state_.emplace(std::move(state));
    state_->keep(rows_done_);
    dropped_records_ = 0;
    return {};
}

// Marks rows as written; none of them on an error.
Status Journal::take_rows(std::span<const int64_t> rows) {
    int64_t last = 0;
    for (const int64_t row : rows) {
        if (row < 0 || row >= ResultRecord::most_rows) {
            return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                         "row %" PRId64 ": rows are numbered from 0 to %" PRId64, row,
                         ResultRecord::most_rows - 1);
        }
        last = std::max(last, row);
    }
    written_.reserve(last);
    for (size_t i = 0; i < rows.size(); ++i) {
        if (!done_.contains(rows[i]) && written_.insert(rows[i])) continue;
        for (size_t before = 0; before < i; ++before) written_.erase(rows[before]);
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "row %" PRId64 " has a result already",
                     rows[i]);
    }
    return {};
}

Status Journal::append_lines(std::span<const int64_t> rows, const uint8_t *failed,
                             std::string_view text, std::span<const int64_t> offsets) {
    if (keep_blocks_) return error(BATCHLLM_ERROR_STATE, "the journal has blocks, not lines");
    if (rows.empty()) return begin();
    std::string records;
    for (size_t i = 0; i < rows.size(); ++i) {
        const std::string_view line = text.substr(static_cast<size_t>(offsets[i]),
                                                  static_cast<size_t>(offsets[i + 1] - offsets[i]));
        if (line.empty() || line.find('\n') != line.size() - 1 ||
            std::memchr(line.data(), 0, line.size()) != nullptr) {
            return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                         "line %zu: a line has one LF, at its end, and no zero byte", i);
        }
        if (!keep_state_) continue;
        ResultRecord record;
        record.row = rows[i];
        record.failed = failed != nullptr && failed[i] != 0;
        record.hash = hash_of(line);
        record.append_to(&records);
    }
    text.remove_prefix(static_cast<size_t>(offsets.front()));
    std::vector<int64_t> ends(offsets.begin() + 1, offsets.end());
    for (int64_t &end : ends) end -= offsets.front();
    return append(rows, failed, text, ends, records);
}

Status Journal::append_block(std::span<const int64_t> rows, const uint8_t *failed,
                             std::string_view bytes) {
    if (!keep_blocks_) return error(BATCHLLM_ERROR_STATE, "the journal has lines, not blocks");
    if (rows.empty()) return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "a block without rows");
    std::string whole;
    whole.reserve(block_head + bytes.size());
    append_word(&whole, bytes.size());
    append_word(&whole, rows.size());
    whole += bytes;
    ResultRecord record;
    record.hash = hash_of(whole);
    std::string records;
    records.reserve(rows.size() * ResultRecord::bytes);
    for (size_t i = 0; i < rows.size(); ++i) {
        record.row = rows[i];
        record.failed = failed != nullptr && failed[i] != 0;
        record.append_to(&records);
    }
    const int64_t ends[] = {static_cast<int64_t>(whole.size())};
    // Once the block is written, nothing may fail.
    if (blocks_.size() == blocks_.capacity()) blocks_.reserve(2 * blocks_.size() + 64);
    const BlockPlace place{bytes_, rows_done_ + rows_written_};
    RETURN_IF_ERROR(append(rows, failed, whole, ends, records));
    blocks_.push_back(place);
    return {};
}

// Cuts off what a failed write has left behind the whole entries and records. Until this succeeds,
// nothing may be appended: it would continue a torn line.
Status Journal::cut_torn() {
    if (!torn_) return {};
    if (!results_->regular()) {
        return error(BATCHLLM_ERROR_IO, "%s: an earlier write has left part of a line",
                     results_->path().c_str());
    }
    RETURN_IF_ERROR(results_->cut(bytes_));
    if (state_.has_value()) RETURN_IF_ERROR(state_->cut());
    torn_ = false;
    return {};
}

// Appends entries of equally many rows; ends: where each ends in bytes.
Status Journal::append(std::span<const int64_t> rows, const uint8_t *failed, std::string_view bytes,
                       std::span<const int64_t> ends, const std::string &records) {
    RETURN_IF_ERROR(begin());
    if (rows.empty()) return {};
    RETURN_IF_ERROR(cut_torn());
    RETURN_IF_ERROR(list_pictures());
    if (state_.has_value()) RETURN_IF_ERROR(take_rows(rows));
    struct Untake { // rows that turn out not to be written, even if memory runs out
        RowSet *written;
        std::span<const int64_t> rows;
        ~Untake() {
            for (const int64_t row : rows) written->erase(row);
        }
    } untake{&written_, state_.has_value() ? rows : std::span<const int64_t>()};
    torn_ = results_->regular();
    if (state_.has_value()) RETURN_IF_ERROR(state_->append(records));
    size_t written = 0;
    const int failure = write_all(results_->fd(), bytes, &written);
    size_t entries = ends.size();
    if (failure != 0) {
        entries = static_cast<size_t>(
            std::upper_bound(ends.begin(), ends.end(), static_cast<int64_t>(written)) -
            ends.begin());
    }
    const size_t kept = rows.size() / ends.size() * entries;
    const int64_t whole = entries > 0 ? ends[entries - 1] : 0;
    bytes_ += whole;
    if (state_.has_value()) {
        state_->keep(state_->kept() + static_cast<int64_t>(kept));
        untake.rows = rows.subspan(kept);
    }
    rows_written_ += static_cast<int64_t>(kept);
    for (size_t i = 0; failed != nullptr && i < kept; ++i) {
        failed_written_ += failed[i] != 0 ? 1 : 0;
    }
    torn_ = failure != 0 && (results_->regular() || static_cast<int64_t>(written) > whole);
    if (failure == 0) return {};
    // If this fails too, the next append tries it again, and so does resuming.
    if (results_->regular()) (void)cut_torn();
    return io_error(results_->path(), "cannot write", failure);
}

Result<std::pair<Journal::BlockPlace, Journal::BlockPlace>> Journal::place_of(int64_t block) const {
    if (block < 0 || block >= blocks()) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "block %" PRId64 " of %" PRId64, block,
                     blocks());
    }
    const auto at = static_cast<size_t>(block);
    const BlockPlace next =
        at + 1 < blocks_.size() ? blocks_[at + 1] : BlockPlace{bytes_, state_->kept()};
    return std::pair(blocks_[at], next);
}

Result<std::span<const int64_t>> Journal::rows_of_block(int64_t block) {
    ASSIGN_OR_RETURN(const auto place, place_of(block));
    const int64_t first = place.first.first_record;
    ASSIGN_OR_RETURN(const std::string records,
                     state_->read(first, place.second.first_record - first));
    read_rows_.clear();
    for (size_t at = 0; at < records.size(); at += ResultRecord::bytes) {
        const std::string_view one = std::string_view(records).substr(at, ResultRecord::bytes);
        read_rows_.push_back(ResultRecord::read(one).row);
    }
    return std::span<const int64_t>(read_rows_);
}

Result<std::string_view> Journal::read_block(int64_t block) {
    ASSIGN_OR_RETURN(const auto place, place_of(block));
    FileScanner scanner(results_->fd(), results_->path(), place.first.offset);
    const auto bytes = static_cast<size_t>(place.second.offset - place.first.offset);
    ASSIGN_OR_RETURN(const std::string_view found, scanner.exactly(bytes));
    if (found.size() < bytes) {
        return error(BATCHLLM_ERROR_IO, "%s: was truncated while the job ran",
                     results_->path().c_str());
    }
    read_.assign(found.substr(block_head));
    return std::string_view(read_);
}

Status Journal::sync() {
    RETURN_IF_ERROR(begin());
    if (!results_->regular()) return {};
    RETURN_IF_ERROR(picture_list_->sync());
    if (state_.has_value()) RETURN_IF_ERROR(state_->sync());
    return results_->sync();
}

Status Journal::finish(const std::string &path) {
    if (!keep_blocks_) {
        return error(BATCHLLM_ERROR_STATE, "the journal has lines: they are the output");
    }
    RETURN_IF_ERROR(sync());
    RETURN_IF_ERROR(cut_torn());
    // An earlier call may have failed after it renamed the output.
    ASSIGN_OR_RETURN(const bool to_rename, renamed_ ? file_exists(path) : Result<bool>(true));
    if (!path.empty() && to_rename) {
        const FileDescriptor made(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
        if (made.get() < 0) return io_error(path, "cannot open");
        if (::fsync(made.get()) != 0) return io_error(path, "cannot sync");
        if (::rename(path.c_str(), output_.c_str()) != 0) {
            return io_error(output_, "cannot rename over");
        }
        renamed_ = true;
    }
    if (!path.empty()) RETURN_IF_ERROR(sync_directory_of(output_));
    ASSIGN_OR_RETURN(const bool there, file_exists(output_));
    if (!there) return error(BATCHLLM_ERROR_STATE, "%s: there is no output", output_.c_str());
    ResultRecord complete;
    complete.kind = ResultRecord::Kind::complete;
    ASSIGN_OR_RETURN(complete.hash, hash_of_output(output_));
    std::string record;
    complete.append_to(&record);
    torn_ = true; // until the record is there, whole and alone
    RETURN_IF_ERROR(state_->append(record));
    RETURN_IF_ERROR(state_->sync());
    complete_ = true;
    blocks_.clear();
    return results_->remove();
}

} // namespace batchllm
