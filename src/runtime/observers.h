// What watches the engine and changes nothing about what it computes: the log, the counts of
// batches, the timeline, the report, and the watch for steps that take extremely long.
//
// Always: nothing here can fail a step. What cannot be written is missing, and is said once.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "report/job_record.h"
#include "runtime/lane.h"
#include "runtime/options.h"
#include "runtime/outcome.h"
#include "runtime/row_run.h"
#include "runtime/step_watch.h"
#include "runtime/timeline.h"

namespace batchllm {

class Observers {
  public:
    explicit Observers(const EngineOptions &options);
    Observers(const Observers &) = delete;
    Observers &operator=(const Observers &) = delete;
    ~Observers();

    Status open_timeline(const std::string &path);
    void set_load_seconds(double seconds) { load_seconds_ = seconds; }
    // Writes to this record from now on; null: to none. now: batchllm_stats of the engine.
    // device_seconds: the most that a device has computed.
    Status set_report(std::shared_ptr<JobRecord> report, const EngineFacts &facts,
                      const batchllm_stats &now, double device_seconds, TokenDecoder decoder);
    bool reports() const { return report_ != nullptr; }

    void warn(const std::string &message) const { log_(BATCHLLM_LOG_WARNING, message); }
    void inform(const std::string &message) const { log_(BATCHLLM_LOG_INFO, message); }
    StepWatch &watch() { return watch_; }

    // A step, from its construction to its destruction.
    class Step {
      public:
        explicit Step(Observers *observers);
        Step(const Step &) = delete;
        Step &operator=(const Step &) = delete;
        ~Step();

      private:
        Observers &observers_;
        std::chrono::steady_clock::time_point start_;
    };

    // advice: "" for none. gain: in tokens.
    void planned(const std::string &advice, double gain);
    bool wants_advice() const { return !advised_ || report_ != nullptr; }
    // Rows of one group are about to be queued on a lane. All begin with the same `shared` tokens;
    // the last new_tokens of those are computed for them.
    void placed(std::span<RowRun *const> runs, const Lane &lane, int64_t shared,
                int64_t new_tokens);
    // The lane's record and output are those of a batch that has just been collected.
    void collected(const Lane &lane, int64_t pages_of_others);
    void ended(const RowRun &run);
    void all_done(); // no row is left
    void polled(const ResultBatch &results);
    void set_stats(const batchllm_stats &stats);

    const StepCounts &step() const { return step_; } // sums over the batches of the current step
    double seconds() const;                          // since the first step
    int64_t prompt_tokens() const { return prompt_tokens_; } // computed for the first time
    void add_to(batchllm_stats *stats) const;

  private:
    double clock(const Lane &lane) const;

    Log log_;
    StepWatch watch_;
    std::optional<Timeline> timeline_;
    std::shared_ptr<JobRecord> report_; // null: none
    bool modelled_ = false;             // the report's seconds are simulated
    double report_start_ = 0;           // by the engine's clock
    std::optional<std::chrono::steady_clock::time_point> first_step_;
    bool advised_ = false; // the log has had its advice
    double load_seconds_ = 0, run_seconds_ = 0;
    StepCounts step_{};
    int64_t batches_ = 0, preemptions_ = 0, recomputed_tokens_ = 0, prompt_tokens_ = 0;
};

} // namespace batchllm
