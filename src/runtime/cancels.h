// Which of the rows added so far are to be cancelled: all, or those with certain tags.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

namespace batchllm {

struct Cancels {
    std::unordered_map<uint64_t, int64_t> below; // tag -> cancel its rows with ids below this
    int64_t all_below = 0;

    bool name(uint64_t tag, int64_t id) const {
        const auto found = below.find(tag);
        return id < all_below || (found != below.end() && id < found->second);
    }
};

// Cancels that any thread may ask for, until the engine's own thread takes them.
class CancelRequests {
  public:
    // The thread that adds rows: the next row will have this id. Cancels asked for from now on do
    // not name it.
    void set_next_id(int64_t id) { next_id_.store(id, std::memory_order_relaxed); }

    void cancel(uint64_t tag) {
        const std::lock_guard lock(mutex_);
        int64_t &below = cancels_.below[tag];
        below = std::max(below, next_id_.load(std::memory_order_relaxed));
        waiting_.store(true, std::memory_order_release);
    }
    void cancel_all() {
        const std::lock_guard lock(mutex_);
        cancels_.all_below = next_id_.load(std::memory_order_relaxed);
        waiting_.store(true, std::memory_order_release);
    }

    std::optional<Cancels> take() {
        if (!waiting_.load(std::memory_order_acquire)) return std::nullopt;
        const std::lock_guard lock(mutex_);
        waiting_.store(false, std::memory_order_relaxed);
        return std::exchange(cancels_, {});
    }

  private:
    std::atomic<int64_t> next_id_{0};
    std::mutex mutex_;
    Cancels cancels_;
    std::atomic<bool> waiting_{false};
};

} // namespace batchllm
