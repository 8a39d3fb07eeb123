#include "base/thread_pool.h"

#include <exception>
#include <sched.h>

namespace batchllm {
namespace {

int32_t available_cores() {
    cpu_set_t set;
    if (::sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    const unsigned cores = std::thread::hardware_concurrency();
    return cores == 0 ? 1 : static_cast<int32_t>(cores);
}

} // namespace

ThreadPool::ThreadPool(int32_t threads) : size_(threads > 0 ? threads : available_cores()) {
    try {
        for (int32_t thread = 1; thread < size_; ++thread) {
            threads_.emplace_back([this, thread] { work(thread); });
        }
    } catch (const std::exception &) {
        // The system gives no more (a limit on processes, memory): those that run are the pool.
        size_ = static_cast<int32_t>(threads_.size()) + 1;
    }
}

ThreadPool::~ThreadPool() {
    {
        std::lock_guard lock(mutex_);
        stop_ = true;
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
    {
        std::lock_guard lock(mutex_);
        task_ = &task;
        count_ = count;
        next_.store(0, std::memory_order_relaxed);
        busy_ = size_ - 1;
        ++round_;
    }
    start_.notify_all();
    take_tasks(task, count, 0);
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return busy_ == 0; });
    task_ = nullptr;
}

void ThreadPool::work(int32_t thread) {
    uint64_t seen = 0;
    std::unique_lock lock(mutex_);
    while (true) {
        start_.wait(lock, [&] { return stop_ || round_ != seen; });
        if (stop_) return;
        seen = round_;
        const auto *task = task_;
        const int64_t count = count_;
        lock.unlock();
        take_tasks(*task, count, thread);
        lock.lock();
        if (--busy_ == 0) done_.notify_one();
    }
}

void ThreadPool::take_tasks(const std::function<void(int64_t, int32_t)> &task, int64_t count,
                            int32_t thread) {
    for (int64_t i = next_.fetch_add(1); i < count; i = next_.fetch_add(1)) task(i, thread);
}

} // namespace batchllm
