// Reports what the engine is doing when part of a step takes extremely long: a device that hangs, a
// driver that does not answer, a machine that swaps. The engine keeps waiting, because only the
// caller knows how long to wait.
//
// A separate thread checks periodically, because the engine's own may be in a call that never
// returns. It starts with the first step, provided that warnings are logged and the system can
// start another thread.
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
    // seconds: when the first warning is issued; each further one follows after twice the time. The
    // limit is also at least eight times the longest time so far, since large steps are normal on a
    // slow processor.
    StepWatch(const Log &log, double seconds) : log_(log), limit_(seconds) {}
    StepWatch(const StepWatch &) = delete;
    StepWatch &operator=(const StepWatch &) = delete;
    ~StepWatch();

    void start();
    // Sets the current activity, which replaces the previous one. doing: a string literal. device
    // -1: none. batch: what the device computes, copied; null: nothing.
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
    double longest_ = 0; // the longest of all activities that have ended
    double next_ = 0;    // when the current activity has taken this many seconds, warn
};

} // namespace batchllm
