#include "runtime/step_watch.h"

#include <algorithm>
#include <cstdio>
#include <new>
#include <system_error>

namespace batchllm {
namespace {

constexpr double usual_times = 8; // times the longest activity so far
constexpr double looks = 4;       // checks within the limit

} // namespace

StepWatch::~StepWatch() {
    if (!thread_.joinable()) return;
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    stopped_.notify_all();
    thread_.join();
}

void StepWatch::start() {
    if (thread_.joinable() || log_.function == nullptr || log_.level < BATCHLLM_LOG_WARNING) return;
    try {
        thread_ = std::thread([this] { watch(); });
    } catch (const std::system_error &) {
        // The next step tries again.
    }
}

void StepWatch::begin(const char *doing, int32_t device, const StepCounts *batch) {
    if (!thread_.joinable()) return;
    const auto now = Clock::now();
    const std::lock_guard lock(mutex_);
    end_locked(now);
    doing_ = doing;
    device_ = device;
    has_batch_ = batch != nullptr;
    if (batch != nullptr) batch_ = *batch;
    since_ = now;
    next_ = std::max(limit_, usual_times * longest_);
}

void StepWatch::end() {
    if (!thread_.joinable()) return;
    const std::lock_guard lock(mutex_);
    end_locked(Clock::now());
}

void StepWatch::end_locked(Clock::time_point now) {
    if (doing_ == nullptr) return;
    longest_ = std::max(longest_, std::chrono::duration<double>(now - since_).count());
    doing_ = nullptr;
}

std::string StepWatch::text(double seconds) const {
    char text[320];
    int length = std::snprintf(text, sizeof text, "a step has been %s", doing_);
    const auto add = [&](const char *format, auto... values) {
        const auto used = static_cast<size_t>(length);
        length += std::snprintf(text + used, sizeof text - used, format, values...);
    };
    if (device_ >= 0) add(" %d", device_);
    add(" for %.3g s", seconds);
    if (has_batch_) {
        add(", with %lld tokens (%lld decode, %lld own, %lld prefix) of %lld requests on %lld KV "
            "pages",
            static_cast<long long>(batch_.decode_tokens + batch_.own_tokens + batch_.prefix_tokens),
            static_cast<long long>(batch_.decode_tokens), static_cast<long long>(batch_.own_tokens),
            static_cast<long long>(batch_.prefix_tokens), static_cast<long long>(batch_.requests),
            static_cast<long long>(batch_.pages_used));
    }
    return text;
}

void StepWatch::watch() {
    std::unique_lock lock(mutex_);
    while (!stop_) {
        stopped_.wait_for(lock, std::chrono::duration<double>(limit_ / looks));
        if (stop_ || doing_ == nullptr) continue;
        const double seconds = std::chrono::duration<double>(Clock::now() - since_).count();
        if (seconds < next_) continue;
        next_ = 2 * seconds;
        try {
            const std::string message = text(seconds);
            lock.unlock(); // the log function may be slow
            log_(BATCHLLM_LOG_WARNING, message);
        } catch (const std::bad_alloc &) {
            // The next check tries again.
        }
        if (!lock.owns_lock()) lock.lock();
    }
}

} // namespace batchllm
