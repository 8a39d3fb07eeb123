#include "backend/cpu/ranks.h"

#include <algorithm>
#include <exception>
#include <new>
#include <thread>

namespace batchllm::cpu {
namespace {

// Of a rank that only waited for one that failed.
constexpr const char *other_failed = "cpu backend: another rank failed";

Status run_rank(Exchange *exchange, const std::function<Status(int32_t)> &task,
                int32_t rank) noexcept {
    Status status;
    try {
        status = task(rank);
    } catch (const std::bad_alloc &) {
        status = Status(BATCHLLM_ERROR_OUT_OF_MEMORY, "out of memory");
    } catch (const std::exception &fault) {
        status = Status(BATCHLLM_ERROR_INTERNAL, fault.what());
    }
    if (!status.ok()) exchange->fail();
    return status;
}

} // namespace

void Exchange::fail() {
    const std::lock_guard lock(mutex_);
    failed_ = true;
    met_.notify_all();
}

Status Exchange::meet() {
    std::unique_lock lock(mutex_);
    if (failed_) return error(BATCHLLM_ERROR_DEVICE, "%s", other_failed);
    const uint64_t meeting = meetings_;
    if (++waiting_ == ranks()) {
        waiting_ = 0;
        ++meetings_;
        met_.notify_all();
    }
    met_.wait(lock, [&] { return failed_ || meetings_ != meeting; });
    return meetings_ != meeting ? Status() : error(BATCHLLM_ERROR_DEVICE, "%s", other_failed);
}

Status Exchange::sum(int32_t rank, std::span<float> numbers) {
    numbers_[static_cast<size_t>(rank)] = numbers;
    RETURN_IF_ERROR(meet());
    const auto all = static_cast<int64_t>(numbers.size());
    const auto begin = static_cast<size_t>(all * rank / ranks());
    const auto end = static_cast<size_t>(all * (rank + 1) / ranks());
    for (size_t r = 1; r < numbers_.size(); ++r) {
        float *to = numbers_[0].data();
        const float *from = numbers_[r].data();
        for (size_t i = begin; i < end; ++i) to[i] += from[i];
    }
    for (size_t r = 1; r < numbers_.size(); ++r) {
        std::copy(numbers_[0].begin() + static_cast<std::ptrdiff_t>(begin),
                  numbers_[0].begin() + static_cast<std::ptrdiff_t>(end),
                  numbers_[r].begin() + static_cast<std::ptrdiff_t>(begin));
    }
    return meet();
}

Status share_squares(const Rank &rank, int32_t sharing, std::span<float> squares) {
    const auto groups = static_cast<size_t>(rank.exchange->ranks() / sharing);
    const size_t own = static_cast<size_t>(rank.number / sharing) * squares.size();
    std::vector<float> all(groups * squares.size(), 0.0f);
    std::copy(squares.begin(), squares.end(), all.begin() + static_cast<std::ptrdiff_t>(own));
    RETURN_IF_ERROR(rank.sum(all));
    for (size_t i = 0; i < squares.size(); ++i) {
        squares[i] = all[own + i] / static_cast<float>(sharing) - squares[i];
    }
    return {};
}

float mean_square(const float *x, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; ++i)
        sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    return static_cast<float>(sum / static_cast<double>(count));
}

Status run_ranks(Exchange *exchange, const std::function<Status(int32_t)> &task) {
    if (exchange == nullptr) return task(0);
    std::vector<Status> statuses(static_cast<size_t>(exchange->ranks()));
    {
        std::vector<std::jthread> others;
        others.reserve(statuses.size());
        for (int32_t rank = 1; rank < exchange->ranks(); ++rank) {
            const auto at = static_cast<size_t>(rank);
            try {
                others.emplace_back(
                    [&, rank, at] { statuses[at] = run_rank(exchange, task, rank); });
            } catch (const std::exception &fault) { // those that wait must not wait for ever
                statuses[at] = Status(BATCHLLM_ERROR_OUT_OF_MEMORY, fault.what());
                exchange->fail();
            }
        }
        statuses[0] = run_rank(exchange, task, 0);
    }
    const Status *first = nullptr;
    for (const Status &status : statuses) {
        if (status.ok()) continue;
        if (first == nullptr || first->message() == other_failed) first = &status;
    }
    return first == nullptr ? Status() : *first;
}

} // namespace batchllm::cpu
