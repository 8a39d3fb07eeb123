// A fixed set of threads that run one parallel loop at a time. The caller takes part, so a pool of
// one thread starts none. An exception from a task on any thread is rethrown to the loop's caller.
//
// Loops in quick succession are short (a decode step has a hundred of some 50 microseconds), so a
// thread spins for the next one for a few microseconds before it sleeps, and the caller waits only for
// threads that have taken part, not for those still waking up.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace batchllm {

class ThreadPool {
  public:
    // A pool never gets more than this, to leave some for other programs.
    static constexpr int32_t most_threads = 1024;

    // threads = 0: one for each core that this process may run on. Fewer than requested if the
    // system starts no more, down to the caller alone.
    explicit ThreadPool(int32_t threads);
    ThreadPool(const ThreadPool &) = delete;
    ThreadPool &operator=(const ThreadPool &) = delete;
    ~ThreadPool();

    // Cores that this process may run on.
    static int32_t available();

    int32_t size() const { return size_; }

    // Calls task(i, thread) for i in [0, count), thread in [0, size()), each i once, in no fixed
    // order, and returns when all are done. One caller at a time; a task must not call it again.
    // If a task throws, tasks that have not begun are skipped; once no thread is in the loop any
    // more, the first exception is thrown here.
    void parallel_for(int64_t count, const std::function<void(int64_t, int32_t)> &task);

  private:
    void work(int32_t thread);
    void take_tasks(const std::function<void(int64_t, int32_t)> &task, int64_t count,
                    int32_t thread) noexcept;
    void finish_loop();

    int32_t size_;
    int32_t spins_; // looks before sleeping; 0 when there are more threads than cores
    std::vector<std::thread> threads_;
    std::mutex mutex_;
    std::condition_variable start_;
    std::condition_variable done_;
    // Changed under the mutex; the two atomics are also read without it.
    const std::function<void(int64_t, int32_t)> *task_ = nullptr; // null: no loop to join
    int64_t count_ = 0;
    std::atomic<uint64_t> round_{0}; // counts loops
    std::atomic<int32_t> active_{0}; // threads in the loop, the caller aside
    int32_t asleep_ = 0;
    bool waiting_ = false; // the caller sleeps on done_
    bool stop_ = false;
    std::atomic<int64_t> next_{0};
    std::atomic<bool> failed_{false};
    std::exception_ptr failure_; // the first; written by the thread that set failed_
};

} // namespace batchllm
