#include "backend/ranks.h"

#include <exception>
#include <new>
#include <thread>
#include <vector>

namespace batchllm {
namespace {

constexpr const char *kOtherFailed = "another rank failed";

Status run_rank(Meeting *meeting, const std::function<Status(int32_t)> &task,
                int32_t rank) noexcept {
    Status status;
    try {
        status = task(rank);
    } catch (const std::bad_alloc &) {
        status = Status(BATCHLLM_ERROR_OUT_OF_MEMORY, "out of memory");
    } catch (const std::exception &fault) {
        status = Status(BATCHLLM_ERROR_INTERNAL, fault.what());
    }
    if (!status.ok()) meeting->fail();
    return status;
}

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

Status run_ranks(Meeting *meeting, const std::function<Status(int32_t)> &task) {
    if (meeting == nullptr) return task(0);
    std::vector<Status> statuses(static_cast<size_t>(meeting->ranks()));
    {
        std::vector<std::jthread> others;
        others.reserve(statuses.size());
        for (int32_t rank = 1; rank < meeting->ranks(); ++rank) {
            const auto at = static_cast<size_t>(rank);
            try {
                others.emplace_back(
                    [&, rank, at] { statuses[at] = run_rank(meeting, task, rank); });
            } catch (const std::exception &fault) { // those that wait must not wait for ever
                statuses[at] = Status(BATCHLLM_ERROR_OUT_OF_MEMORY, fault.what());
                meeting->fail();
            }
        }
        statuses[0] = run_rank(meeting, task, 0);
    }
    const Status *first = nullptr;
    for (const Status &status : statuses) {
        if (status.ok()) continue;
        if (first == nullptr || first->message() == kOtherFailed) first = &status;
    }
    return first == nullptr ? Status() : *first;
}

} // namespace batchllm
