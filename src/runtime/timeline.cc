#include "runtime/timeline.h"

#include <cerrno>
#include <cinttypes>
#include <cstring>
#include <stdio.h>

#include "base/file.h"

namespace batchllm {
namespace {

// A reader that follows the file lags by at most this many steps.
constexpr int64_t flush_every = 64;

} // namespace

Result<Timeline> Timeline::open(const std::string &path) {
    Timeline timeline;
    timeline.path_ = path;
    ASSIGN_OR_RETURN(FileDescriptor named, copy_descriptor_named(path));
    timeline.file_.reset(named.get() < 0 ? std::fopen(path.c_str(), "we")
                                         : ::fdopen(named.get(), "we"));
    if (timeline.file_ == nullptr) {
        return error(BATCHLLM_ERROR_IO, "%s: cannot create: %s", path.c_str(),
                     std::strerror(errno));
    }
    named.release(); // now owned by the stream
    // Stays in the buffer. As for any line, the next flush reports a full disk.
    std::fputs("step,milliseconds,decode_tokens,own_tokens,prefix_tokens,requests,pages_used,"
               "device\n",
               timeline.file_.get());
    return timeline;
}

Status Timeline::write(int64_t step, double milliseconds, const StepCounts &counts,
                       int32_t device) {
    if (file_ == nullptr) return {};
    if (std::fprintf(file_.get(),
                     "%" PRId64 ",%.3f,%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64
                     ",%d\n",
                     step, milliseconds, counts.decode_tokens, counts.own_tokens,
                     counts.prefix_tokens, counts.requests, counts.pages_used, device) < 0) {
        return failed();
    }
    if (++unflushed_ < flush_every) return {};
    return flush();
}

Status Timeline::flush() {
    if (file_ == nullptr) return {};
    unflushed_ = 0;
    return std::fflush(file_.get()) == 0 ? Status() : failed();
}

Status Timeline::failed() {
    const int code = errno;
    file_.reset();
    return error(BATCHLLM_ERROR_IO, "%s: cannot write: %s; the timeline ends here", path_.c_str(),
                 std::strerror(code));
}

} // namespace batchllm
