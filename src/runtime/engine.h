// The engine runs a job a step at a time. It ties four owners, each of which has the rows in one of
// their places:
//
//     intake.h      rows that have been added and are in no plan
//     agenda.h      rows that are planned and have not been started
//     placement.h   rows that a device computes
//     answers.h     rows that have their results
//
// All use row_reader.h, the loaded model as rows meet it; observers.h watches. A step plans what
// the intake has, then places rows of the agenda on the lanes and puts their batches in flight,
// waits for the first batch, and answers the rows that it ends.
//
// Always: a row is in exactly one place, so it gets exactly one answer. Rows waiting + running +
// done = rows added. An engine that has failed in the middle of a step stays failed; the answers
// made so far can be polled.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "constraint/specification.h"
#include "plan/plan.h"
#include "report/job_record.h"
#include "runtime/adapter_library.h"
#include "runtime/agenda.h"
#include "runtime/answers.h"
#include "runtime/backend_choice.h"
#include "runtime/intake.h"
#include "runtime/observers.h"
#include "runtime/options.h"
#include "runtime/placement.h"
#include "runtime/row_reader.h"

namespace batchllm {

class Engine {
  public:
    using ModelLoader = std::function<Result<LoadedModel>(const EngineOptions &options)>;

    static Result<std::unique_ptr<Engine>> create(const EngineOptions &options);
    // The same with another function that makes the backends.
    static Result<std::unique_ptr<Engine>> create(const EngineOptions &options,
                                                  const ModelLoader &loader);

    // To add rows to. Fails if the engine has failed.
    Result<Intake *> intake();
    // A constraint for this engine's rows. Any thread.
    Result<SpecifiedConstraint> make_constraint(const ConstraintSpecification &specification);
    // An adapter for this engine's rows. Any thread.
    Result<std::shared_ptr<const AdapterSource>> load_adapter(const std::string &name,
                                                              const std::string &path);
    // Fails if no row can run with these parameters.
    Status check_params(const batchllm_params &params);

    Status use_plan(const Plan &plan) { return agenda_.use(plan); }
    Status build_groups();
    Result<Plan> get_plan() const { return agenda_.get(); }

    Status step(batchllm_progress *progress);
    Status run(batchllm_progress_function callback, void *user);
    std::unique_ptr<ResultBatch> poll(int64_t max_results);

    // Any thread; interrupt() also from a signal handler.
    void cancel(uint64_t tag) { intake_.cancel(tag); }
    void cancel_all() { intake_.cancel_all(); }
    void interrupt() { interrupted_.store(true, std::memory_order_relaxed); }

    // Writes to this record from now on; null: to none.
    Status set_report(std::shared_ptr<JobRecord> report);
    batchllm_stats stats() const;
    // Describes one of the devices. Any thread.
    Result<batchllm_info> info(int32_t device) const;
    MaskWork mask_work() const { return placement_.mask_work(); } // over all devices
    DraftWork draft_work() const { return answers_.draft_work(); }
    // The labels of a model with a classification head; otherwise empty.
    std::span<const std::string> labels() const;

  private:
    Engine(const EngineOptions &options, std::unique_ptr<Observers> observers,
           std::unique_ptr<RowReader> reader, LoadedModel loaded);

    Status plan_rows(bool use_given);
    Status run_step();
    Status place_run_answer();
    void warn_of_cut_off();
    void warn_of_adapter_loads();
    void inform_of_drafts();
    void inform_of_merging();
    Status run_ahead(Lane *lane);
    Status fail_unreadable(Lane *lane);
    Status sample(Lane *lane);
    Status answer_batch(Lane *lane);
    void end_run(RowRun *run);
    void apply_cancels();
    Status go_on_without(Lane *lost, Status why);
    bool all_done() const { return answers_.rows_done() == intake_.added(); }
    void fill_progress(batchllm_progress *progress) const;

    const std::string model_dir_;
    std::unique_ptr<Observers> observers_;
    std::unique_ptr<RowReader> reader_; // has the model, which the lanes' backends borrow
    Answers answers_;
    Intake intake_;
    Agenda agenda_;
    std::shared_ptr<AdapterLibrary> adapters_; // the lanes read from it
    Placement placement_;
    Status failed_;
    bool warned_of_loads_ = false;
    int64_t informed_of_drafts_ = 0;  // proposed tokens
    int64_t informed_of_merging_ = 0; // steps
    bool running_ = false; // prevents step and run from being called from run's own callback
    std::atomic<bool> interrupted_{false};
};

} // namespace batchllm
