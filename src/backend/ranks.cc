#include "backend/ranks.h"

#include <exception>
#include <new>
#include <thread>
#include <vector>

namespace batchllm {
namespace {

constexpr const char *kOtherFailed = "another rank failed";

} // namespace

Status Meeting::other_failed() { return error(BATCHLLM_ERROR_DEVICE, "%s", kOtherFailed); }

void Meeting::fail() {
    const std::lock_guard lock(mutex_);
    failed_ = true;
    met_.notify_all();
}

bool Meeting::failed() const {
    const std::lock_guard lock(mutex_);
    return failed_;
}

Status Meeting::meet() {
    std::unique_lock lock(mutex_);
    if (failed_) return other_failed();
    const uint64_t meeting = meetings_;
    if (++waiting_ == ranks_) {
        waiting_ = 0;
        ++meetings_;
        met_.notify_all();
    }
    met_.wait(lock, [&] { return failed_ || meetings_ != meeting; });
    return meetings_ != meeting ? Status() : other_failed();
}

Status Meeting::run(const Task &task, int32_t rank) noexcept {
    Status status;
    try {
        status = task(rank);
    } catch (const std::bad_alloc &) {
        status = Status(BATCHLLM_ERROR_OUT_OF_MEMORY, "out of memory");
    } catch (const std::exception &fault) {
        status = Status(BATCHLLM_ERROR_INTERNAL, fault.what());
    }
    if (!status.ok()) fail();
    return status;
}

void Meeting::serve(const std::stop_token &stop, int32_t rank, uint64_t calls) {
    std::unique_lock lock(mutex_);
    while (called_.wait(lock, stop, [&] { return calls_ != calls; })) {
        calls = calls_;
        lock.unlock();
        Status status = run(*task_, rank);
        lock.lock();
        statuses_[static_cast<size_t>(rank)] = std::move(status);
        if (--running_ == 0) ended_.notify_one();
    }
}

// Those threads that are missing.
void Meeting::start() {
    threads_.reserve(static_cast<size_t>(ranks_));
    for (auto rank = static_cast<int32_t>(threads_.size()) + 1; rank < ranks_; ++rank) {
        threads_.emplace_back([this, rank, calls = calls_](const std::stop_token &stop) {
            serve(stop, rank, calls);
        });
    }
}

Status run_ranks(Meeting *meeting, const std::function<Status(int32_t)> &task) {
    if (meeting == nullptr) return task(0);
    Meeting &m = *meeting;
    try {
        m.start();
    } catch (const std::exception &fault) { // the system refuses
        m.fail();
        return Status(BATCHLLM_ERROR_OUT_OF_MEMORY, fault.what());
    }
    {
        const std::lock_guard lock(m.mutex_);
        m.statuses_.assign(static_cast<size_t>(m.ranks_), Status());
        m.task_ = &task;
        m.running_ = m.ranks_ - 1;
        ++m.calls_;
    }
    m.called_.notify_all();
    Status own = m.run(task, 0);
    std::unique_lock lock(m.mutex_);
    m.statuses_[0] = std::move(own);
    m.ended_.wait(lock, [&] { return m.running_ == 0; });
    const Status *first = nullptr;
    for (const Status &status : m.statuses_) {
        if (status.ok()) continue;
        if (first == nullptr || first->message() == kOtherFailed) first = &status;
    }
    return first == nullptr ? Status() : *first;
}

} // namespace batchllm
