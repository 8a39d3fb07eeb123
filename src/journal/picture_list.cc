#include "journal/picture_list.h"

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <optional>
#include <sys/stat.h>
#include <unistd.h>

#include "base/display.h"
#include "base/file.h"
#include "base/printable.h"
#include "journal/file_scanner.h"
#include "journal/results_file.h"

namespace batchllm {
namespace {

std::string line_of(const ReadPicture &file) {
    char text[96];
    std::snprintf(text, sizeof text, "%016llx%016llx %lld %lld ",
                  static_cast<unsigned long long>(file.hash[1]),
                  static_cast<unsigned long long>(file.hash[0]), static_cast<long long>(file.bytes),
                  static_cast<long long>(file.changed));
    std::string line = text;
    for (const char c : file.path) {
        if (c == '%' || static_cast<unsigned char>(c) < ' ') {
            std::snprintf(text, sizeof text, "%%%02X", static_cast<unsigned>(c));
            line += text;
        } else {
            line += c;
        }
    }
    return line + '\n';
}

template <typename Number> bool read_number(std::string_view text, int base, Number *number) {
    const auto [end, fault] =
        std::from_chars(text.data(), text.data() + text.size(), *number, base);
    return fault == std::errc() && end == text.data() + text.size();
}

// Without its LF.
std::optional<ReadPicture> read_line(std::string_view line) {
    std::array<std::string_view, 3> parts;
    for (std::string_view &part : parts) {
        const size_t space = line.find(' ');
        if (space == std::string_view::npos) return std::nullopt;
        part = line.substr(0, space);
        line.remove_prefix(space + 1);
    }
    ReadPicture file;
    if (parts[0].size() != 32 || !read_number(parts[0].substr(0, 16), 16, &file.hash[1]) ||
        !read_number(parts[0].substr(16), 16, &file.hash[0]) ||
        !read_number(parts[1], 10, &file.bytes) || !read_number(parts[2], 10, &file.changed)) {
        return std::nullopt;
    }
    for (size_t i = 0; i < line.size(); ++i) {
        unsigned char c = static_cast<unsigned char>(line[i]);
        if (c == '%') {
            if (!read_number(line.substr(i + 1, 2), 16, &c)) return std::nullopt;
            i += 2;
        }
        file.path += static_cast<char>(c);
    }
    if (file.path.empty() || file.path.find('\0') != std::string::npos) return std::nullopt;
    return file;
}

} // namespace

PictureList::~PictureList() {
    if (fd_ >= 0) ::close(fd_);
}

Result<std::string> PictureList::changes(const PictureLibrary &library) const {
    ASSIGN_OR_RETURN(const bool there, file_exists(path_));
    if (!there) return std::string();
    const FileDescriptor fd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (fd.get() < 0) return io_error(path_, "cannot open");
    FileScanner scanner(fd.get(), path_, 0);
    int64_t changed = 0;
    std::string first;
    while (true) {
        bool whole = false;
        ASSIGN_OR_RETURN(const std::string_view line, scanner.until('\n', &whole));
        if (!whole) break;
        const auto file = read_line(line.substr(0, line.size() - 1));
        if (!file.has_value()) continue;
        ASSIGN_OR_RETURN(const bool has_changed, library.has_changed(*file));
        if (has_changed && ++changed == 1) first = in_quotes(file->path);
    }
    if (changed == 0) return std::string();
    return changed == 1
               ? "the picture " + first + " has changed"
               : format_count(changed) + " pictures have changed, the first of them " + first;
}

Status PictureList::check() const {
    struct stat info;
    if (::stat(path_.c_str(), &info) != 0 || S_ISREG(info.st_mode)) return {};
    return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                 "%s: not a regular file: the job's pictures are listed there", path_.c_str());
}

Status PictureList::remove() {
    if (::unlink(path_.c_str()) != 0 && errno != ENOENT) return io_error(path_, "cannot remove");
    return {};
}

// Cuts off what a run that was killed has left behind the whole lines.
Status PictureList::open() {
    FileDescriptor fd(::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
    if (fd.get() < 0) return io_error(path_, "cannot open");
    struct stat info;
    if (::fstat(fd.get(), &info) != 0) return io_error(path_, "cannot stat");
    for (bytes_ = int64_t{info.st_size}; bytes_ > 0; --bytes_) {
        char last = 0;
        if (::pread(fd.get(), &last, 1, bytes_ - 1) != 1) return io_error(path_, "cannot read");
        if (last == '\n') break;
    }
    if (::ftruncate(fd.get(), bytes_) != 0) return io_error(path_, "cannot truncate");
    fd_ = fd.release();
    return {};
}

Status PictureList::append(std::span<const ReadPicture> files) {
    for (const ReadPicture &file : files) unwritten_ += line_of(file);
    if (unwritten_.empty()) return {};
    if (fd_ < 0) RETURN_IF_ERROR(open());
    size_t written = 0;
    const int failure = write_all(fd_, unwritten_, &written);
    if (failure != 0) {
        if (::ftruncate(fd_, bytes_) != 0) return io_error(path_, "cannot truncate");
        return io_error(path_, "cannot write", failure);
    }
    bytes_ += static_cast<int64_t>(unwritten_.size());
    unwritten_.clear();
    return {};
}

Status PictureList::sync() const {
    if (fd_ >= 0 && ::fdatasync(fd_) != 0) return io_error(path_, "cannot sync");
    return {};
}

} // namespace batchllm
