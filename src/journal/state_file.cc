#include "journal/state_file.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "base/file.h"
#include "journal/results_file.h"
#include "journal/word.h"

namespace batchllm {
namespace {

// No row has this word, which is a row's number from 1 on, twice, and whether the row failed.
constexpr uint64_t complete_word = UINT64_MAX;
// The hash of a record that has this word and says that lines are being dropped. Others are of complete jobs.
constexpr uint64_t dropping_hash = 1;
// Above the row's number: a check of both words, so that a damaged number is not taken for another row's.
constexpr int check_shift = 48;
constexpr uint64_t row_mask = (uint64_t{1} << check_shift) - 1;

// Never 0, which records of early versions have there.
uint64_t check_of(uint64_t word, uint64_t hash) {
    return std::max<uint64_t>(1, (word ^ hash) * 0x9E3779B97F4A7C15 >> check_shift);
}

} // namespace

void ResultRecord::append_to(std::string *out) const {
    const uint64_t word = static_cast<uint64_t>(row + 1) << 1 | (failed ? 1u : 0u);
    if (kind == Kind::complete || kind == Kind::dropping) {
        append_word(out, complete_word);
        append_word(out, kind == Kind::complete ? hash : dropping_hash);
        return;
    }
    append_word(out, word | check_of(word, hash) << check_shift);
    append_word(out, hash);
}

ResultRecord ResultRecord::read(std::string_view stored) {
    const uint64_t stored_word = read_word(stored.data());
    const uint64_t word = stored_word & row_mask, check = stored_word >> check_shift;
    ResultRecord record;
    record.failed = (word & 1) != 0;
    record.row = static_cast<int64_t>(word >> 1) - 1;
    record.hash = read_word(stored.data() + 8);
    if (stored_word == 0 && record.hash == 0) {
        record.kind = Kind::lost;
    } else if (stored_word == complete_word) {
        record.kind = record.hash == dropping_hash ? Kind::dropping : Kind::complete;
    } else if (record.row < 0 || record.row >= most_rows ||
               (check != 0 && check != check_of(word, record.hash))) {
        record.kind = Kind::damaged;
    }
    return record;
}

StateFile::StateFile(StateFile &&other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), first_(other.first_),
      kept_(other.kept_) {}

StateFile::~StateFile() {
    if (fd_ >= 0) ::close(fd_);
}

Result<StateFile> StateFile::open(const std::string &path, JobIdentity *identity) {
    StateFile state(path, ::open(path.c_str(), O_RDWR | O_APPEND | O_CLOEXEC));
    if (state.fd_ < 0) return io_error(path, "cannot open");
    FileScanner scanner(state.fd_, path, 0);
    bool whole = false;
    ASSIGN_OR_RETURN(const std::string_view line, scanner.until('\n', &whole));
    state.first_ = static_cast<int64_t>(line.size());
    // If the first line has no line end, whatever is written next would become part of it.
    ASSIGN_OR_RETURN(*identity, JobIdentity::from_json(path, whole ? line : std::string_view("")));
    return state;
}

Result<StateFile> StateFile::create(const std::string &path, const JobIdentity &identity,
                                    std::string_view records) {
    const std::string header = identity.to_json() + "\n";
    RETURN_IF_ERROR(write_file(path, header + std::string(records)));
    StateFile state(path, ::open(path.c_str(), O_RDWR | O_APPEND | O_CLOEXEC));
    if (state.fd_ < 0) return io_error(path, "cannot open");
    state.first_ = static_cast<int64_t>(header.size());
    return state;
}

Result<int64_t> StateFile::count() const {
    struct stat info;
    if (::fstat(fd_, &info) != 0) return io_error(path_, "cannot stat");
    return (info.st_size - first_) / int64_t{ResultRecord::bytes};
}

Result<bool> StateFile::dropping() const {
    ASSIGN_OR_RETURN(const int64_t records, count());
    if (records < 1) return false;
    ASSIGN_OR_RETURN(const std::string last, read(records - 1, 1));
    return ResultRecord::read(last).kind == ResultRecord::Kind::dropping;
}

Result<std::string> StateFile::read(int64_t begin, int64_t count) const {
    FileScanner scanner(fd_, path_, first_ + begin * int64_t{ResultRecord::bytes});
    const size_t bytes = static_cast<size_t>(count) * ResultRecord::bytes;
    ASSIGN_OR_RETURN(const std::string_view found, scanner.exactly(bytes));
    if (found.size() == bytes) return std::string(found);
    return error(BATCHLLM_ERROR_IO, "%s: was truncated while the job ran", path_.c_str());
}

Status StateFile::cut() {
    if (::ftruncate(fd_, kept_end()) != 0) return io_error(path_, "cannot truncate");
    return {};
}

Status StateFile::append(std::string_view records) {
    size_t written = 0;
    const int failure = write_all(fd_, records, &written);
    if (failure == 0) return {};
    // Records without results do no harm, but half a record would shift all later ones.
    RETURN_IF_ERROR(cut());
    return io_error(path_, "cannot write", failure);
}

Status StateFile::sync() const {
    if (::fdatasync(fd_) != 0) return io_error(path_, "cannot sync");
    return {};
}

} // namespace batchllm
