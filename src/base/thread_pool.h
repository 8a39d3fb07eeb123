// A fixed set of threads that run one parallel loop at a time. The caller takes part, so a pool of
// one thread starts none. Tasks must not throw.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace batchllm {

class ThreadPool {
  public:
    // threads = 0: one for each core that this process may run on. Fewer than asked for where the
    // system starts no more.
    explicit ThreadPool(int32_t threads);
    ThreadPool(const ThreadPool &) = delete;
    ThreadPool &operator=(const ThreadPool &) = delete;
    ~ThreadPool();

    int32_t size() const { return size_; }

    // Calls task(i, thread) for i in [0, count), thread in [0, size()), each i once, in no fixed
    // order, and returns when all are done. One caller at a time; a task must not call it again.
    void parallel_for(int64_t count, const std::function<void(int64_t, int32_t)> &task);

  private:
    void work(int32_t thread);
    void take_tasks(const std::function<void(int64_t, int32_t)> &task, int64_t count,
                    int32_t thread);

    int32_t size_;
    std::vector<std::thread> threads_;
    std::mutex mutex_;
    std::condition_variable start_;
    std::condition_variable done_;
    const std::function<void(int64_t, int32_t)> *task_ = nullptr;
    int64_t count_ = 0;
    std::atomic<int64_t> next_{0};
    uint64_t round_ = 0;
    int32_t busy_ = 0;
    bool stop_ = false;
};

} // namespace batchllm
