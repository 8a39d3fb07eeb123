#include "cli/line_reader.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace batchllm::cli {
namespace {

constexpr size_t read_bytes = size_t{1} << 20;
constexpr int poll_milliseconds = 100;

const char *find_line_end(const char *begin, const char *end) {
    return static_cast<const char *>(std::memchr(begin, '\n', static_cast<size_t>(end - begin)));
}

// A line that is an array of anything else is an error of that line.
bool begins_array_of_objects(std::string_view begin) {
    if (begin.starts_with("\xef\xbb\xbf")) begin.remove_prefix(3); // a byte order mark
    begin.remove_prefix(std::min(begin.find_first_not_of(" \t\r\n"), begin.size()));
    if (!begin.starts_with('[')) return false;
    const size_t next = begin.find_first_not_of(" \t\r", 1);
    return next != begin.npos && (begin[next] == '{' || begin[next] == '\n');
}

constexpr size_t kind_bytes = 64; // that tell a file's kind

// Rejects a file of another kind, in which every line would be an error. begin: its first kind_bytes.
Status check_kind(std::string_view begin, const std::string &path) {
    struct Kind {
        std::string_view begin;
        const char *what, *how;
    };
    constexpr const char *python = "`python -m batchllm run` reads it";
    constexpr const char *unpack = "unpack it, or pipe it in unpacked: --input -";
    const Kind kinds[] = {{"PAR1", "a Parquet file", python},
                          {"ARROW1", "an Arrow file", python},
                          {"\x1f\x8b", "compressed by gzip", unpack},
                          {"\x28\xb5\x2f\xfd", "compressed by zstd", unpack},
                          {"BZh", "compressed by bzip2", unpack},
                          {"\xfd\x37zXZ", "compressed by xz", unpack}};
    const char *what = nullptr, *how = nullptr;
    for (const Kind &kind : kinds) {
        if (begin.starts_with(kind.begin)) what = kind.what, how = kind.how;
    }
    const bool json = begin.find_first_of("{\xef \t\r\n") == 0; // \xef: a byte order mark
    if (path.ends_with(".csv") && !begin.empty() && !json) what = "a CSV file", how = python;
    if (what == nullptr && begins_array_of_objects(begin)) {
        what = "a JSON array", how = "a line is one object; `jq -c '.[]'` makes lines of an array";
    }
    if (what == nullptr) return {};
    return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "%s: is %s: %s", path.c_str(), what, how);
}

} // namespace

bool Line::blank() const {
    return !too_long && std::all_of(text.begin(), text.end(),
                                    [](char c) { return c == ' ' || c == '\t' || c == '\r'; });
}

Result<LineReader> LineReader::open(const std::string &path, int64_t max_line_bytes,
                                    const std::atomic<bool> *stop) {
    LineReader reader;
    reader.path_ = path == "-" ? "stdin" : path;
    reader.max_line_bytes_ = static_cast<size_t>(max_line_bytes);
    reader.stop_ = stop;
    if (path == "-") {
        reader.fd_ = STDIN_FILENO;
    } else {
        // Opens a named pipe without waiting for its writer. Waiting for the writer works like
        // waiting for bytes, and checks the flag.
        reader.fd_ =
            ::open(path.c_str(), O_RDONLY | O_CLOEXEC | (stop != nullptr ? O_NONBLOCK : 0));
        reader.owned_ = true;
    }
    struct stat info;
    if (reader.fd_ < 0 || ::fstat(reader.fd_, &info) != 0) {
        return error(BATCHLLM_ERROR_IO, "%s: cannot open: %s", path.c_str(), std::strerror(errno));
    }
    if (S_ISDIR(info.st_mode)) {
        return error(BATCHLLM_ERROR_IO, "%s: is a directory", path.c_str());
    }
    if (reader.owned_ && stop != nullptr) ::fcntl(reader.fd_, F_SETFL, 0);
    reader.regular_ = S_ISREG(info.st_mode);
    if (reader.regular_) {
        char begin[kind_bytes];
        const ssize_t got = ::pread(reader.fd_, begin, sizeof begin, 0);
        RETURN_IF_ERROR(check_kind({begin, got > 0 ? static_cast<size_t>(got) : 0}, reader.path_));
        reader.file_bytes_ = info.st_size;
    }
    reader.reserve(2 * read_bytes);
    return reader;
}

LineReader::LineReader(LineReader &&other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), owned_(other.owned_),
      regular_(other.regular_), end_of_file_(other.end_of_file_), started_(other.started_),
      file_bytes_(other.file_bytes_), max_line_bytes_(other.max_line_bytes_), stop_(other.stop_),
      buffer_(std::move(other.buffer_)), capacity_(other.capacity_), begin_(other.begin_),
      end_(other.end_), consumed_(other.consumed_), number_(other.number_) {}

LineReader::~LineReader() {
    if (owned_ && fd_ >= 0) ::close(fd_);
}

// Makes room for at least `capacity` bytes, moving the unread ones to the front.
void LineReader::reserve(size_t capacity) {
    if (capacity != capacity_) {
        std::unique_ptr<char[]> larger(new char[capacity]);
        if (end_ > begin_) std::memcpy(larger.get(), buffer_.get() + begin_, end_ - begin_);
        buffer_ = std::move(larger);
        capacity_ = capacity;
    } else if (end_ > begin_) {
        std::memmove(buffer_.get(), buffer_.get() + begin_, end_ - begin_);
    }
    end_ -= begin_;
    begin_ = 0;
}

Result<bool> LineReader::fill() {
    if (end_of_file_) return false;
    const size_t unread = end_ - begin_;
    if (capacity_ > 8 * read_bytes && unread < read_bytes) {
        reserve(2 * read_bytes); // shrinks after a long line
    } else if (capacity_ - end_ < read_bytes) {
        reserve(capacity_ - unread < read_bytes ? 2 * capacity_ : capacity_);
    }
    while (true) {
        if (!regular_ && stop_ != nullptr) {
            if (stop_->load(std::memory_order_relaxed)) {
                end_of_file_ = stopped_ = true;
                return false;
            }
            struct pollfd ready = {fd_, POLLIN, 0};
            if (::poll(&ready, 1, poll_milliseconds) <= 0) continue;
        }
        const ssize_t got = ::read(fd_, buffer_.get() + end_, capacity_ - end_);
        if (got < 0) {
            if (errno == EINTR) continue;
            return error(BATCHLLM_ERROR_IO, "%s: cannot read: %s", path_.c_str(),
                         std::strerror(errno));
        }
        if (got == 0) {
            end_of_file_ = true;
            return false;
        }
        end_ += static_cast<size_t>(got);
        return true;
    }
}

// The unread bytes begin a line that is too long: drops the whole line.
Result<bool> LineReader::skip_long_line(Line *line) {
    while (true) {
        const char *begin = buffer_.get() + begin_;
        const char *end = find_line_end(begin, buffer_.get() + end_);
        if (end != nullptr) {
            const size_t bytes = static_cast<size_t>(end - begin) + 1;
            begin_ += bytes;
            consumed_ += static_cast<int64_t>(bytes);
            break;
        }
        consumed_ += static_cast<int64_t>(end_ - begin_);
        begin_ = end_ = 0;
        ASSIGN_OR_RETURN(const bool more, fill());
        if (stopped_) return false;
        if (!more) break;
    }
    line->number = ++number_;
    line->text = {};
    line->too_long = true;
    return true;
}

bool LineReader::line_buffered() const {
    return find_line_end(buffer_.get() + begin_, buffer_.get() + end_) != nullptr;
}

Result<bool> LineReader::next(Line *line) {
    if (!started_) {
        started_ = true;
        while (end_ - begin_ < kind_bytes && !line_buffered()) {
            ASSIGN_OR_RETURN(const bool more, fill());
            if (!more) break;
        }
        const std::string_view first(buffer_.get() + begin_, end_ - begin_);
        if (!regular_) RETURN_IF_ERROR(check_kind(first.substr(0, kind_bytes), path_));
        if (first.starts_with("\xEF\xBB\xBF")) {
            begin_ += 3;
            consumed_ += 3;
        }
    }
    size_t searched = 0; // bytes after begin_ that are known to contain no line end
    while (true) {
        const char *begin = buffer_.get() + begin_;
        const char *end = find_line_end(begin + searched, buffer_.get() + end_);
        searched = end_ - begin_;
        const size_t length = end != nullptr ? static_cast<size_t>(end - begin) : searched;
        if (length > max_line_bytes_) return skip_long_line(line);
        if (end == nullptr) {
            ASSIGN_OR_RETURN(const bool more, fill());
            if (more) continue;
            if (length == 0 || stopped_) return false;
        }
        begin = buffer_.get() + begin_;
        line->text = {begin, length};
        if (!line->text.empty() && line->text.back() == '\r') line->text.remove_suffix(1);
        line->number = ++number_;
        line->too_long = false;
        const size_t bytes = length + (end != nullptr ? 1 : 0);
        begin_ += bytes;
        consumed_ += static_cast<int64_t>(bytes);
        return true;
    }
}

} // namespace batchllm::cli
