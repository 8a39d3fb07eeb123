#include "journal/file_scanner.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <unistd.h>
#include <utility>

namespace batchllm {

Result<std::string_view> FileScanner::until(char end, bool *whole) {
    size_t searched = 0;
    while (true) {
        const size_t found = buffer_.find(end, begin_ + searched);
        if (found != std::string::npos) {
            *whole = true;
            return take(found + 1 - begin_);
        }
        searched = buffer_.size() - begin_;
        ASSIGN_OR_RETURN(const bool more, fill());
        if (!more) {
            *whole = false;
            return take(searched);
        }
    }
}

Result<std::string_view> FileScanner::peek(size_t bytes) {
    while (buffer_.size() - begin_ < bytes) {
        ASSIGN_OR_RETURN(const bool more, fill());
        if (!more) break;
    }
    return std::string_view(buffer_).substr(begin_, bytes);
}

Result<std::string_view> FileScanner::exactly(size_t bytes) {
    ASSIGN_OR_RETURN(const std::string_view found, peek(bytes));
    return take(found.size());
}

std::string_view FileScanner::take(size_t bytes) {
    const std::string_view view(buffer_.data() + begin_, bytes);
    begin_ += bytes;
    return view;
}

Result<bool> FileScanner::fill() {
    constexpr size_t most = size_t{1} << 18;
    const size_t chunk = std::exchange(chunk_, std::min(4 * chunk_, most));
    buffer_.erase(0, begin_);
    begin_ = 0;
    const size_t size = buffer_.size();
    buffer_.resize(size + chunk);
    ssize_t got = -1;
    do {
        got = ::pread(fd_, buffer_.data() + size, chunk, offset_);
    } while (got < 0 && errno == EINTR);
    buffer_.resize(size + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got < 0) {
        return error(BATCHLLM_ERROR_IO, "%s: cannot read: %s", path_.c_str(), std::strerror(errno));
    }
    offset_ += got;
    return got > 0;
}

} // namespace batchllm
