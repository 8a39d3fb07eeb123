// Divides a step's rows among tasks, and its time among parts.
#pragma once

#include <chrono>
#include <cstdint>

namespace batchllm::cpu {

constexpr int64_t kTokensOfTask = 16;

inline int64_t task_count(int64_t rows) { return (rows + kTokensOfTask - 1) / kTokensOfTask; }

// Adds the time since the last lap to a part.
class Laps {
  public:
    void lap(double *part) {
        const auto now = std::chrono::steady_clock::now();
        *part += std::chrono::duration<double>(now - last_).count();
        last_ = now;
    }

  private:
    std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

} // namespace batchllm::cpu
