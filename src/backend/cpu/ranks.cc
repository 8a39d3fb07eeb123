#include "backend/cpu/ranks.h"

#include <algorithm>

namespace batchllm::cpu {
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

} // namespace batchllm::cpu
