#include "base/thread_pool.h"

#include <algorithm>
#include <sched.h>
#include <utility>

namespace batchllm {
namespace {

// About 20 microseconds.
constexpr int32_t kSpins = 1000;

void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

} // namespace

int32_t ThreadPool::available() {
    cpu_set_t set;
    if (::sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    const unsigned cores = std::thread::hardware_concurrency();
    return cores == 0 ? 1 : static_cast<int32_t>(cores);
}

ThreadPool::ThreadPool(int32_t threads)
    : size_(std::min(threads > 0 ? threads : available(), most_threads)),
      spins_(size_ <= available() ? kSpins : 0) {
    try {
        for (int32_t thread = 1; thread < size_; ++thread) {
            threads_.emplace_back([this, thread] { work(thread); });
        }
    } catch (const std::exception &) {
        // The system refuses to start more (a limit on processes, memory): the pool has those that
        // run.
        size_ = static_cast<int32_t>(threads_.size()) + 1;
    }
}

ThreadPool::~ThreadPool() {
    {
        std::lock_guard lock(mutex_);
        stop_ = true;
        round_.fetch_add(1, std::memory_order_release);
    }
    start_.notify_all();
    for (std::thread &thread : threads_) thread.join();
}

void ThreadPool::parallel_for(int64_t count, const std::function<void(int64_t, int32_t)> &task) {
    if (count <= 0) return;
    if (size_ == 1 || count == 1) {
        for (int64_t i = 0; i < count; ++i) task(i, 0);
        return;
    }
    bool wake = false;
    {
        std::lock_guard lock(mutex_);
        task_ = &task;
        count_ = count;
        next_.store(0, std::memory_order_relaxed);
        round_.fetch_add(1, std::memory_order_release);
        wake = asleep_ > 0;
    }
    if (wake) start_.notify_all();
    take_tasks(task, count, 0);
    finish_loop();
    if (!failed_.load(std::memory_order_acquire)) return;
    const std::exception_ptr failure = std::exchange(failure_, nullptr);
    failed_.store(false, std::memory_order_relaxed);
    std::rethrow_exception(failure);
}

// No tasks are left. Closes the loop to threads that have not joined and waits for those that have.
void ThreadPool::finish_loop() {
    std::unique_lock lock(mutex_);
    task_ = nullptr;
    if (active_.load(std::memory_order_acquire) == 0) return;
    lock.unlock();
    for (int32_t spin = 0; spin < spins_; ++spin) {
        if (active_.load(std::memory_order_acquire) == 0) return;
        relax();
    }
    lock.lock();
    waiting_ = true;
    done_.wait(lock, [this] { return active_.load(std::memory_order_acquire) == 0; });
    waiting_ = false;
}

void ThreadPool::work(int32_t thread) {
    uint64_t seen = 0;
    while (true) {
        for (int32_t spin = 0; spin < spins_; ++spin) {
            if (round_.load(std::memory_order_acquire) != seen) break;
            relax();
        }
        std::unique_lock lock(mutex_);
        ++asleep_;
        start_.wait(lock, [&] { return round_.load(std::memory_order_relaxed) != seen; });
        --asleep_;
        if (stop_) return;
        seen = round_.load(std::memory_order_relaxed);
        if (task_ == nullptr) continue;
        const auto *task = task_;
        const int64_t count = count_;
        active_.fetch_add(1, std::memory_order_relaxed);
        lock.unlock();
        take_tasks(*task, count, thread);
        lock.lock();
        if (active_.fetch_sub(1, std::memory_order_release) == 1 && waiting_) done_.notify_one();
    }
}

void ThreadPool::take_tasks(const std::function<void(int64_t, int32_t)> &task, int64_t count,
                            int32_t thread) noexcept {
    try {
        for (int64_t i = next_.fetch_add(1); i < count; i = next_.fetch_add(1)) task(i, thread);
    } catch (...) {
        next_.store(count); // no more tasks begin
        if (!failed_.exchange(true, std::memory_order_relaxed)) {
            failure_ = std::current_exception();
        }
    }
}

} // namespace batchllm
