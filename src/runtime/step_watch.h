// Says what the engine has been doing when one thing in a step takes absurdly long: a device that hangs, a
// driver that does not answer, a machine that swaps. The engine waits on: only the caller knows for how
// long that makes sense.
//
// A thread of its own looks now and then, for the engine's may be in a call that never returns. It is
// started with the first step, and only where warnings are logged; where the system starts no more
// threads there is none.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "runtime/options.h"
#include "schedule/scheduler.h"

namespace batchllm {

class StepWatch {
  public:
    // seconds: warned about from then on, at first, and whenever it has taken twice as long again. Later
    // also eight times as long as anything has taken before: large steps on a slow processor are no news.
    StepWatch(const Log &log, double seconds) : log_(log), limit_(seconds) {}
    StepWatch(const StepWatch &) = delete;
    StepWatch &operator=(const StepWatch &) = delete;
    ~StepWatch();

    void start();
    // From now on, instead of what was done before. doing: a literal; device -1: none. batch: what the
    // device computes, copied; null: nothing.
    void begin(const char *doing, int32_t device = -1, const StepCounts *batch = nullptr);
    void end();

  private:
    using Clock = std::chrono::steady_clock;

    void watch();
    void end_locked(Clock::time_point now);
    std::string text(double seconds) const;

    const Log log_;
    const double limit_;
    std::thread thread_;
    std::mutex mutex_;
    std::condition_variable stopped_;
    bool stop_ = false;
    const char *doing_ = nullptr; // null: nothing
    int32_t device_ = -1;
    bool has_batch_ = false;
    StepCounts batch_{};
    Clock::time_point since_{};
    double longest_ = 0; // of anything that has ended
    double next_ = 0;    // seconds of what is done at which to warn
};

} // namespace batchllm
