// OUTPUT.state: which job this is, and a record for each row that has a result.
//
// The first line is JSON that identifies the job (JobIdentity). Then comes a record of 16 bytes for
// each row, in the order of the results. A record is written before its result, so the state always
// has at least the records of all results. docs/formats.md has the layout.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "journal/file_scanner.h"
#include "journal/job_identity.h"

namespace batchllm {

struct ResultRecord {
    static constexpr size_t bytes = 16;
    // In a complete record: an earlier version has not noted what the output is. No hash of one is below the next.
    static constexpr uint64_t no_hash = 0, least_output_hash = 2;
    static constexpr int64_t most_rows = (int64_t{1} << 40) - 1; // a row's number is below this

    enum class Kind : uint8_t {
        row,
        complete, // the job is complete; follows all others. Its hash is of the output
        dropping, // the results of rows that failed are being dropped; follows all others
        lost,     // never reached the disk, and so reads as zeros
        damaged,
    };
    Kind kind = Kind::row;
    bool failed = false;
    int64_t row = 0;         // from 0
    uint64_t hash = no_hash; // of the result

    void append_to(std::string *out) const;
    static ResultRecord read(std::string_view stored); // 16 of them
};

class StateFile {
  public:
    // Opens the state of an earlier run and reads its first line.
    static Result<StateFile> open(const std::string &path, JobIdentity *identity);
    // Writes a new state with these records, in place of any earlier one.
    static Result<StateFile> create(const std::string &path, const JobIdentity &identity,
                                    std::string_view records = {});
    StateFile(StateFile &&other) noexcept;
    StateFile &operator=(StateFile &&) = delete;
    ~StateFile();

    const std::string &path() const { return path_; }

    // What follows the first line. Whole records end where exactly() returns fewer bytes.
    FileScanner records() const { return {fd_, path_, first_}; }
    // `count` records from number `begin` on, which must be there.
    Result<std::string> read(int64_t begin, int64_t count) const;

    // How many whole records there are.
    Result<int64_t> count() const;
    // Whether the last one is of the kind `dropping`.
    Result<bool> dropping() const;

    // Of the records, how many have their result. Others are cut off by cut().
    int64_t kept() const { return kept_; }
    void keep(int64_t records) { kept_ = records; }
    Status cut();

    // Appends whole records, or nothing on an error. They are not yet kept.
    Status append(std::string_view records);
    Status sync() const;

  private:
    StateFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
    int64_t kept_end() const { return first_ + kept_ * int64_t{ResultRecord::bytes}; }

    std::string path_;
    int fd_;
    int64_t first_ = 0; // offset of the first record
    int64_t kept_ = 0;
};

} // namespace batchllm
