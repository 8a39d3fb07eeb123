// A fixed set of threads that run one parallel loop at a time. The caller takes part, so a pool of
// one thread starts no others. An exception from a task on any thread is rethrown to the loop's
// caller.
//
// Short loops follow each other quickly (a decode step has a hundred of about 50 microseconds
// each). So a thread spins for a few microseconds before it sleeps, and the caller waits only for
// threads that have joined the loop, not for those still waking up.
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
    // Upper limit for any pool, which leaves some threads for other programs.
    static constexpr int32_t most_threads = 1024;

    // threads = 0: one for each core that this process may run on. The pool has fewer threads than
    // requested if the system refuses to start more; at worst, only the caller.
    explicit ThreadPool(int32_t threads);
    ThreadPool(const ThreadPool &) = delete;
    ThreadPool &operator=(const ThreadPool &) = delete;
    ~ThreadPool();

    // Cores that this process may run on.
    static int32_t available();

    int32_t size() const { return size_; }

    // Calls task(i, thread) once for each i in [0, count), in no fixed order, with thread in [0,
    // size()), and returns when all are done. One caller at a time; a task must not call it again.
    // If a task throws, tasks that have not begun are skipped, and the first exception is rethrown
    // here once all threads have left the loop.
    void parallel_for(int64_t count, const std::function<void(int64_t, int32_t)> &task);

  private:
    void work(int32_t thread);
    void take_tasks(const std::function<void(int64_t, int32_t)> &task, int64_t count,
                    int32_t thread) noexcept;
    void finish_loop();

    int32_t size_;
    int32_t spins_; // polls before sleeping; 0 if there are more threads than cores
    std::vector<std::thread> threads_;
    std::mutex mutex_;
    std::condition_variable start_;
    std::condition_variable done_;
    // Written under the mutex; the two atomics are also read without it.
    const std::function<void(int64_t, int32_t)> *task_ = nullptr; // null: no loop to join
    int64_t count_ = 0;
    std::atomic<uint64_t> round_{0}; // counts loops
    std::atomic<int32_t> active_{0}; // threads in the loop, not counting the caller
    int32_t asleep_ = 0;
    bool waiting_ = false; // the caller sleeps on done_
    bool stop_ = false;
    std::atomic<int64_t> next_{0};
    std::atomic<bool> failed_{false};
    std::exception_ptr failure_; // the first; written by the thread that set failed_
};

} // namespace batchllm
