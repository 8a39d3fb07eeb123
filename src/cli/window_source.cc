// Windows are built by a separate thread, ahead of the run that takes them.
#include <system_error>

#include "cli/window.h"

namespace batchllm::cli {

WindowSource::WindowSource(LineReader input, RowReaderOptions row_options, WindowOptions options,
                           const batchllm_tokenizer *tokenizer, const DoneLines *done)
    : input_(std::move(input)),
      builder_(&input_, std::move(row_options), std::move(options), tokenizer, done, &stop_) {
    input_.stop_at(&stop_);
    try {
        thread_ = std::thread([this] { work(); });
    } catch (const std::system_error &) {
        // The system refuses to start a thread: take() builds the windows.
    }
}

WindowSource::~WindowSource() {
    {
        std::lock_guard lock(mutex_);
        stop_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
}

void WindowSource::work() {
    std::exception_ptr exception;
    try {
        build_until_last();
    } catch (...) {
        exception = std::current_exception();
    }
    std::lock_guard lock(mutex_);
    exception_ = exception;
    finished_ = true;
    changed_.notify_all();
}

void WindowSource::build_until_last() {
    bool last = false;
    while (!last) {
        Result<std::unique_ptr<Window>> window = builder_.next();
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return stop_ || window_ == nullptr; });
        if (stop_) return;
        if (!window.ok()) {
            failure_ = std::move(window).status();
            return;
        }
        last = window.value()->last;
        window_ = std::move(window).value();
        finished_ = last;
        changed_.notify_all();
    }
}

Result<std::unique_ptr<Window>> WindowSource::take(int64_t milliseconds) {
    if (!thread_.joinable()) {
        if (finished_) return std::unique_ptr<Window>();
        ASSIGN_OR_RETURN(std::unique_ptr<Window> built, builder_.next());
        finished_ = built->last;
        return built;
    }
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::milliseconds(milliseconds),
                      [this] { return window_ != nullptr || finished_; });
    if (window_ == nullptr && exception_ != nullptr) std::rethrow_exception(exception_);
    if (window_ == nullptr && !failure_.ok()) return failure_;
    std::unique_ptr<Window> window = std::move(window_);
    lock.unlock();
    changed_.notify_all();
    return window;
}

} // namespace batchllm::cli
