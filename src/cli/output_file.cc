#include "cli/output_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include <xxhash.h>

#include "base/file.h"
#include "cli/file_scanner.h"
#include "cli/named_file.h"

namespace batchllm::cli {
namespace {

constexpr int64_t record_bytes = 16;

uint64_t line_hash(std::string_view line) { return XXH3_64bits(line.data(), line.size()); }

void append_word(std::string *out, uint64_t value) {
    for (int shift = 0; shift < 64; shift += 8) *out += static_cast<char>(value >> shift & 0xFF);
}

uint64_t read_word(const char *bytes) {
    uint64_t value = 0;
    for (int i = 7; i >= 0; --i) value = value << 8 | static_cast<unsigned char>(bytes[i]);
    return value;
}

Status io_error(const std::string &path, const char *what, int code = errno) {
    return error(BATCHLLM_ERROR_IO, "%s: %s: %s", path.c_str(), what, std::strerror(code));
}

// Writes everything. On an error, sets *written to the number of bytes written before it and
// returns errno.
int write_all(int fd, std::string_view bytes, size_t *written) noexcept {
    *written = 0;
    while (*written < bytes.size()) {
        const ssize_t part = ::write(fd, bytes.data() + *written, bytes.size() - *written);
        if (part < 0 && errno == EINTR) continue;
        if (part < 0) return errno;
        *written += static_cast<size_t>(part);
    }
    return 0;
}

// A block that never reached the disk reads as zeros.
bool all_zero(std::string_view bytes) {
    return bytes.find_first_not_of('\0') == std::string_view::npos;
}

} // namespace

bool LineSet::insert(int64_t line) {
    const auto word = static_cast<size_t>(line >> 6);
    if (word >= words_.size()) words_.resize(word + word / 2 + 1024);
    const uint64_t bit = uint64_t{1} << (line & 63);
    if ((words_[word] & bit) != 0) return false;
    words_[word] |= bit;
    return true;
}

void OutputBatch::commit_line(int64_t input_line, bool failed) {
    const size_t begin = ends_.empty() ? 0 : ends_.back();
    std::string record;
    append_word(&record, static_cast<uint64_t>(input_line) << 1 | (failed ? 1 : 0));
    append_word(&record, line_hash(std::string_view(text_).substr(begin)));
    records_ += record;
    try {
        ends_.push_back(text_.size());
    } catch (...) {
        records_.resize(records_.size() - record.size());
        throw;
    }
    if (failed) ++failed_;
}

void OutputBatch::clear() {
    text_.clear();
    records_.clear();
    ends_.clear();
    failed_ = 0;
}

Result<OutputFile> OutputFile::open(const std::string &path, const std::string &input_path,
                                    ExistingOutput existing, JobIdentity *identity) {
    OutputFile file;
    file.path_ = path == "-" ? "stdout" : path;
    file.state_path_ = path + ".state";
    const int descriptor = path == "-" ? STDOUT_FILENO : descriptor_named(path);
    if (descriptor >= 0) {
        if (existing == ExistingOutput::resume) {
            return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                         "%s: an open descriptor: --resume needs an output file", path.c_str());
        }
        file.fd_ = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 3);
        if (file.fd_ < 0) return io_error(file.path_, "cannot open");
        return file;
    }
    RETURN_IF_ERROR(file.open_file(input_path, existing));
    if (file.regular_) RETURN_IF_ERROR(file.prepare(existing, identity));
    return file;
}

// Opens the file and locks it if it is a regular one. Other runs do the same with the same path. A
// run that fails removes the file that it created, while holding the lock; so a lock counts only
// while the path still leads to the locked file.
Status OutputFile::open_file(const std::string &input_path, ExistingOutput existing) {
    const char *path = path_.c_str();
    while (true) {
        struct stat info;
        // A pipe that is also opened for reading would never report that its reader has closed it.
        const bool there = ::stat(path, &info) == 0;
        if (!there && errno != ENOENT) return io_error(path_, "cannot stat");
        bool created = false;
        if (there && !S_ISREG(info.st_mode)) {
            fd_ = ::open(path, O_WRONLY | O_CLOEXEC);
        } else {
            fd_ = ::open(path, O_RDWR | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
            created = fd_ >= 0;
            if (!created && errno != EEXIST) return io_error(path_, "cannot create");
            // With a dangling link, the file is created but is not ours to remove.
            const bool link = ::lstat(path, &info) == 0 && S_ISLNK(info.st_mode);
            if (!created) {
                fd_ = ::open(path, O_RDWR | (link ? O_CREAT : 0) | O_APPEND | O_CLOEXEC, 0666);
                if (fd_ < 0 && errno == ENOENT && !link) continue; // removed in the meantime
            }
        }
        if (fd_ < 0 || ::fstat(fd_, &info) != 0) return io_error(path_, "cannot open");
        regular_ = S_ISREG(info.st_mode);
        if (!regular_) {
            if (existing != ExistingOutput::resume) return {};
            return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                         "%s: not a regular file: --resume cannot read it back", path);
        }
        ASSIGN_OR_RETURN(const bool is_input,
                         same_file(input_path == "-" ? "/dev/stdin" : input_path, fd_));
        if (is_input) return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "%s: is the input", path);
        RETURN_IF_ERROR(lock_file());
        // Between open and lock, another run may have completed its whole job.
        if (::fstat(fd_, &info) != 0) return io_error(path_, "cannot stat");
        created_ = created && info.st_size == 0;
        ASSIGN_OR_RETURN(const bool named, leads_to(path_, fd_));
        if (named) return {};
        created_ = false;
        ::close(std::exchange(fd_, -1));
    }
}

Status OutputFile::lock_file() {
    if (::flock(fd_, LOCK_EX | LOCK_NB) == 0) return {};
    if (errno != EWOULDBLOCK) return io_error(path_, "cannot lock");
    return error(BATCHLLM_ERROR_IO, "%s: another run is writing to it", path_.c_str());
}

// Decides what to do with a regular output file that may not be empty.
Status OutputFile::prepare(ExistingOutput existing, JobIdentity *identity) {
    struct stat info;
    if (::fstat(fd_, &info) != 0) return io_error(path_, "cannot stat");
    if (existing == ExistingOutput::resume && identity == nullptr) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "--resume needs an input file");
    }
    if (existing == ExistingOutput::resume) {
        ASSIGN_OR_RETURN(const bool has_state, file_exists(state_path_));
        if (has_state) {
            resuming_ = true;
            return resume_state(identity);
        }
    }
    if (info.st_size > 0 && existing == ExistingOutput::refuse) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "%s: exists; --resume continues it, --force starts over", path_.c_str());
    }
    if (info.st_size > 0 && existing == ExistingOutput::resume) {
        return error(BATCHLLM_ERROR_IO,
                     "%s: not found, so it is not known which rows are done; --force starts over",
                     state_path_.c_str());
    }
    if (identity != nullptr) state_header_ = identity->to_json() + "\n";
    return {};
}

Status OutputFile::start() {
    started_ = true;
    if (!regular_) return {};
    if (resuming_) {
        if (::ftruncate(fd_, bytes_) != 0) return io_error(path_, "cannot cut off a torn line");
        if (::ftruncate(state_fd_, state_bytes_) != 0) {
            return io_error(state_path_, "cannot truncate");
        }
        return sync();
    }
    if (::ftruncate(fd_, 0) != 0) return io_error(path_, "cannot empty");
    // Later writes must not reach the disk before this.
    RETURN_IF_ERROR(sync());
    RETURN_IF_ERROR(sync_directory_of(path_));
    if (!state_header_.empty()) return start_state();
    if (::unlink(state_path_.c_str()) != 0 && errno != ENOENT) {
        return io_error(state_path_, "cannot remove");
    }
    return {};
}

Status OutputFile::start_state() {
    RETURN_IF_ERROR(write_file(state_path_, state_header_));
    state_fd_ = ::open(state_path_.c_str(), O_RDWR | O_APPEND | O_CLOEXEC);
    if (state_fd_ < 0) return io_error(state_path_, "cannot open");
    state_bytes_ = static_cast<int64_t>(state_header_.size());
    return {};
}

Status OutputFile::resume_state(JobIdentity *identity) {
    state_fd_ = ::open(state_path_.c_str(), O_RDWR | O_APPEND | O_CLOEXEC);
    if (state_fd_ < 0) return io_error(state_path_, "cannot open");
    FileScanner scanner(state_fd_, state_path_, 0);
    bool whole = false;
    ASSIGN_OR_RETURN(const std::string_view first, scanner.until('\n', &whole));
    const auto records_begin = static_cast<uint64_t>(first.size());
    // If the first line has no line end, whatever is written next would become part of it.
    ASSIGN_OR_RETURN(const JobIdentity earlier,
                     JobIdentity::from_json(state_path_, whole ? first : std::string_view("")));
    const std::string differences = identity->differences(earlier);
    if (!differences.empty()) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "%s: cannot resume: not the same job: %s; --force starts over", path_.c_str(),
                     differences.c_str());
    }
    identity->created = earlier.created;
    return match_lines(records_begin);
}

// Pairs the output's lines with the state's records. start() cuts off those without a partner.
Status OutputFile::match_lines(uint64_t records_begin) {
    FileScanner lines(fd_, path_, 0);
    FileScanner records(state_fd_, state_path_, static_cast<int64_t>(records_begin));
    state_bytes_ = static_cast<int64_t>(records_begin);
    int64_t surplus = 0;
    while (true) {
        bool whole = false;
        ASSIGN_OR_RETURN(const std::string_view line, lines.until('\n', &whole));
        if (!whole) break; // torn, or the end
        if (surplus > 0) {
            ++surplus;
            continue;
        }
        ASSIGN_OR_RETURN(const std::string_view record,
                         records.exactly(static_cast<size_t>(record_bytes)));
        if (static_cast<int64_t>(record.size()) < record_bytes) {
            // Only a crash of the machine can leave lines without records. They are run again.
            surplus = 1;
            continue;
        }
        const uint64_t word = read_word(record.data());
        const bool lost = all_zero(record) || line.find('\0') != std::string_view::npos;
        if (!lost && read_word(record.data() + 8) != line_hash(line)) {
            // A lost block may begin or end inside a record.
            ASSIGN_OR_RETURN(const std::string_view next,
                             records.exactly(static_cast<size_t>(record_bytes)));
            if (all_zero(next)) {
                surplus = 1;
                continue;
            }
            return error(BATCHLLM_ERROR_IO,
                         "%s: line %lld is not what an earlier run wrote there; --force starts "
                         "over",
                         path_.c_str(), static_cast<long long>(resumed_rows_ + 1));
        }
        if (lost) {
            surplus = 1;
            continue;
        }
        if (word >> 1 == 0 || word >> 41 != 0 || !done_.insert(static_cast<int64_t>(word >> 1))) {
            return error(BATCHLLM_ERROR_IO, "%s: damaged at record %lld; --force starts over",
                         state_path_.c_str(), static_cast<long long>(resumed_rows_ + 1));
        }
        ++resumed_rows_;
        resumed_failed_ += static_cast<int64_t>(word & 1);
        bytes_ += static_cast<int64_t>(line.size());
        state_bytes_ += record_bytes;
    }
    surplus_lines_ = surplus;
    return {};
}

OutputFile::OutputFile(OutputFile &&other) noexcept
    : path_(std::move(other.path_)), state_path_(std::move(other.state_path_)),
      fd_(std::exchange(other.fd_, -1)), state_fd_(std::exchange(other.state_fd_, -1)),
      regular_(other.regular_), created_(std::exchange(other.created_, false)),
      started_(other.started_), resuming_(other.resuming_),
      state_header_(std::move(other.state_header_)), bytes_(other.bytes_),
      state_bytes_(other.state_bytes_), done_(std::move(other.done_)),
      resumed_rows_(other.resumed_rows_), resumed_failed_(other.resumed_failed_),
      surplus_lines_(other.surplus_lines_), rows_written_(other.rows_written_),
      rows_failed_(other.rows_failed_) {}

OutputFile::~OutputFile() {
    // A run that has not started leaves nothing behind. It has held the lock since it created the
    // file.
    struct stat own, named;
    if (created_ && !started_ && ::fstat(fd_, &own) == 0 && ::stat(path_.c_str(), &named) == 0 &&
        own.st_dev == named.st_dev && own.st_ino == named.st_ino) {
        ::unlink(path_.c_str());
    }
    if (fd_ >= 0) ::close(fd_);
    if (state_fd_ >= 0) ::close(state_fd_);
}

// Anything written to a file without a name is lost when the run ends.
Status OutputFile::check_named() const {
    if (!regular_) return {};
    ASSIGN_OR_RETURN(const bool named, leads_to(path_, fd_));
    if (named) return {};
    return error(BATCHLLM_ERROR_IO, "%s: was removed, renamed or replaced while the job ran",
                 path_.c_str());
}

Status OutputFile::append(const OutputBatch &batch) {
    RETURN_IF_ERROR(check_named());
    size_t written = 0;
    if (state_fd_ >= 0) {
        const int failure = write_all(state_fd_, batch.records(), &written);
        if (failure != 0) {
            // Records without lines do no harm, but half a record would shift all later ones.
            if (::ftruncate(state_fd_, state_bytes_) != 0) return io_error(state_path_, "truncate");
            return io_error(state_path_, "cannot write", failure);
        }
    }
    const int failure = write_all(fd_, batch.lines(), &written);
    int64_t lines = 0;
    int64_t failed = 0;
    size_t kept = 0;
    for (const size_t end : batch.line_ends()) {
        if (end > written) break;
        kept = end;
        failed += batch.records()[static_cast<size_t>(lines * record_bytes)] & 1;
        ++lines;
    }
    bytes_ += static_cast<int64_t>(kept);
    state_bytes_ += lines * record_bytes;
    rows_written_ += lines;
    rows_failed_ += failed;
    if (failure == 0) return {};
    // Keeps whole lines only. If this fails too, --resume does the same.
    if (regular_ && ::ftruncate(fd_, bytes_) == 0 && state_fd_ >= 0 &&
        ::ftruncate(state_fd_, state_bytes_) != 0) {
        return io_error(state_path_, "truncate");
    }
    return io_error(path_, "cannot write", failure);
}

Status OutputFile::sync() {
    if (!regular_) return {};
    if (state_fd_ >= 0 && ::fdatasync(state_fd_) != 0) return io_error(state_path_, "cannot sync");
    if (::fdatasync(fd_) != 0) return io_error(path_, "cannot sync");
    return check_named();
}

} // namespace batchllm::cli
