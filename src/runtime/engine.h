// The engine: owns model, tokenizer, backend, scheduler and rows, and runs the job a step at a time.
//
//     add_*  -> rows (row_store.h), checked; a bad row gets its result at once
//     build_groups -> plan of all rows that have not started
//     step   -> place: groups of the plan become jobs (job.h, slice.h) on a device's lane (lane.h)
//               schedule: the lanes' next token batches are put in flight
//               post-process: one batch's tokens and scores go to their sequences; finished jobs
//               become results
//     poll   -> results as columns
//
// Always: a row is in exactly one place: waiting to be planned, in the plan from next_group_ on, in
// a job, or answered. So it gets exactly one result. Rows waiting + running + done = rows added.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "backend/backend.h"
#include "base/thread_pool.h"
#include "constraint/specification.h"
#include "plan/plan.h"
#include "report/job_record.h"
#include "runtime/addition.h"
#include "runtime/backend_choice.h"
#include "runtime/columns.h"
#include "runtime/job.h"
#include "runtime/lane.h"
#include "runtime/masks.h"
#include "runtime/options.h"
#include "runtime/outcome.h"
#include "runtime/row_store.h"
#include "runtime/step_watch.h"
#include "runtime/timeline.h"
#include "table/table.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace batchllm {

// Continuations for n rows: those of row i are numbers [rows[i], rows[i + 1]).
template <typename T> struct ContinuationColumns {
    Column<T> continuations;
    const int64_t *rows = nullptr; // [n + 1]
};

// Which of the rows added so far to cancel: all, or those with certain tags.
struct Cancels {
    std::unordered_map<uint64_t, int64_t> below; // tag -> cancel its rows with ids below this
    int64_t all_below = 0;

    bool name(uint64_t tag, int64_t id) const {
        const auto found = below.find(tag);
        return id < all_below || (found != below.end() && id < found->second);
    }
};

class Engine {
  public:
    using ModelLoader = std::function<Result<LoadedModel>(const EngineOptions &options)>;

    static Result<std::unique_ptr<Engine>> create(const EngineOptions &options);
    // The same with another function that makes the backends.
    static Result<std::unique_ptr<Engine>> create(const EngineOptions &options,
                                                  const ModelLoader &loader);
    ~Engine();

    // Adds rows. The columns have been checked. Strong guarantee: adds all rows or none.
    Status add_tokens(const Column<int32_t> &prompts, const uint64_t *tags,
                      const ParamsColumn &params);
    Status add_text(const Column<char> &prompts, const uint64_t *tags, const ParamsColumn &params);
    Status add_chat(const Column<char> &conversations, const uint64_t *tags,
                    const ParamsColumn &params);
    Status add_table(const Table &table, const uint64_t *tags, const ParamsColumn &params);
    Status add_scores(const Column<int32_t> &prompts, const ContinuationColumns<int32_t> &scored,
                      const uint64_t *tags);
    Status add_score_text(const Column<char> &prompts, const ContinuationColumns<char> &scored,
                          const uint64_t *tags, const batchllm_params &params);

    // A constraint for this engine's rows. Any thread.
    Result<SpecifiedConstraint> make_constraint(const ConstraintSpecification &specification);

    // Fails if no row can run with these parameters.
    Status check_params(const batchllm_params &params);

    // Writes to this record from now on; null: to none.
    Status set_report(std::shared_ptr<JobRecord> report);

    Status use_plan(const Plan &plan);
    Status build_groups();
    Result<Plan> get_plan() const;

    Status step(batchllm_progress *progress);
    Status run(batchllm_progress_function callback, void *user);
    std::unique_ptr<ResultBatch> poll(int64_t max_results);

    // Any thread; interrupt() also from a signal handler.
    void cancel(uint64_t tag);
    void cancel_all();
    void interrupt() { interrupted_.store(true, std::memory_order_relaxed); }

    batchllm_stats stats() const;
    // Describes one of the devices. Any thread.
    Result<batchllm_info> info(int32_t device) const;
    MaskWork mask_work() const; // over all devices
    // The labels of a model with a classification head; otherwise empty.
    std::span<const std::string> labels() const;

  private:
    Engine() = default;

    // engine.cc
    Status load(const EngineOptions &options, const ModelLoader &loader);
    Result<ModelTasks> model_tasks(const BackendInfo &info) const;
    void fill_progress(batchllm_progress *progress) const;
    int64_t rows_running() const;
    int64_t rows_done() const { return intake_.bad + stats_.rows_done; }

    // engine_add.cc
    class RowParams;
    void add_sampled(Addition *addition, uint64_t tag, std::span<const int32_t> prompt,
                     const RowParams &params, int64_t tokens_to_come);
    template <typename Encode>
    Status add_encoded(int64_t n, const uint64_t *tags, const ParamsColumn &params, Encode encode);
    Status encode_text(std::string_view text, const batchllm_params &params,
                       std::vector<int32_t> *tokens) const;
    Status encode_chat(std::string_view conversation, const batchllm_params &params,
                       const std::tm &now, std::vector<int32_t> *tokens) const;
    void add_scored(Addition *addition, uint64_t tag, std::span<const int32_t> prompt,
                    std::unique_ptr<ScoreSpec> score, int64_t tokens_to_come);
    void commit(Addition *addition);
    Status check_prompt(std::span<const int32_t> prompt, int64_t generated) const;
    Status check_tokens(const char *what, std::span<const int32_t> tokens) const;
    Status check_scored(std::span<const int32_t> prompt, const ScoreSpec &score) const;
    Status check_pool(const char *what, int64_t tokens, bool all_stored) const;
    Status check_row(std::span<const int32_t> prompt, const PreparedParams &params) const;
    Status check_prepared(const PreparedParams &params) const;
    Status check_constraint(const SamplingParams &params) const;
    Status need_tokenizer() const;
    ThreadPool &pool();

    // engine_plan.cc
    struct PlannedRows {
        Plan plan;
        std::vector<int64_t> ids; // row of the plan -> id, or -1
    };
    std::vector<int64_t> rows_left(std::vector<int64_t> *ended);
    TokenRow token_row(int64_t *id);
    PlanOptions plan_options() const;
    std::optional<PlannedRows> take_given_plan(const std::vector<int64_t> &left);
    Result<PlannedRows> plan_rows(const std::vector<int64_t> &left);
    static std::vector<int64_t> last_groups_of(const Plan &plan);
    void link_equal_rows(const std::vector<std::pair<uint64_t, int64_t>> &candidates);
    std::string advice_text();
    void tell_advice();
    bool sharing() const { return options_.enlarge != BATCHLLM_ENLARGE_NONE; }

    // engine_place.cc
    struct LaneShare;
    class Placement;
    Status place_groups();
    Job *start_job(int64_t id, Lane *lane);
    int64_t tokens_of_group(const PlanGroup &group);
    int64_t generation_of(const Row &row) const;
    int64_t generation_of(const PreparedParams &params, int64_t prompt_length) const;

    // engine_step.cc
    Status run_step();
    Status run_started_step();
    Status run_lanes();
    Status fill(Lane *lane);
    Lane *next_lane();
    Status take_from(Lane *lane);
    Status sample_newest(Lane *lane);
    void take_forced(Lane *lane);
    void post_process(Lane *lane);
    void accept_sample(Sequence *sequence, const SampleOutput &sample);
    void accept_hidden(Sequence *sequence, std::span<const float> sum, int32_t tokens, bool finite);
    bool accept_constrained(Sequence *sequence, int32_t token);
    void accept_token(Sequence *sequence, int32_t token);
    void accept_scores(Sequence *sequence, std::span<const float> logprobs, bool finite);
    void accept_prompt_score(Sequence *sequence, float logprob, const SampleOutput &output);
    void finish(Sequence *sequence, int32_t reason);
    void fail(Sequence *sequence, int32_t status, std::string message);
    void spend(const Sequence &sequence, int64_t tokens);
    bool ends_row(const SamplingParams &params, int32_t token) const;
    void warn_once(const Status &status);

    // engine_lost.cc
    Status run_on_what_is_left();
    int64_t take_back_rows(const Lane *lane);
    Status plan_again();

    // engine_report.cc
    double report_clock(const Lane &lane) const;
    double clock_now() const;
    void report_group(const std::vector<Job *> &jobs, int64_t shared, int64_t new_tokens);
    void report_batch(const Lane &lane);
    void report_end(const Job &job);

    // engine_end.cc
    void apply_cancels();
    void cancel_waiting(Row *row);
    void cancel_started(Job *job, const Cancels &cancels);
    void end_job(Job *job);
    void give(const Job &job, Job::Answer *to, bool cancelled);

    EngineOptions options_;
    Log log_;
    std::unique_ptr<Model> model_;               // see LoadedModel::model
    std::shared_ptr<const Tokenizer> tokenizer_; // null: tokens only
    std::unique_ptr<const ChatTemplate> chat_;   // null if tokenizer_ is
    struct Device {
        int32_t number;
        BackendInfo info;
    };
    std::vector<Device> devices_;              // as loaded, including those that have failed since
                                               // then
    std::vector<std::unique_ptr<Lane>> lanes_; // one per device that has not failed
    std::unique_ptr<ThreadPool> pool_;         // for the tokenizer and masks; created when first
                                               // needed
    std::optional<Timeline> timeline_;
    std::optional<StepWatch> watch_;
    std::shared_ptr<JobRecord> report_; // null: none
    double report_start_ = 0;           // by clock_now()
    std::vector<int32_t> eos_tokens_;
    std::optional<Classifier> classifier_;
    mutable std::mutex vocabulary_mutex_;
    std::shared_ptr<const TokenVocabulary> vocabulary_; // for constraints; created when first
                                                        // needed
    RowMasks masks_;
    int64_t max_request_tokens_ = 0;

    Intake intake_; // rows, rows to be planned, results
    std::optional<ParamsReader> params_;
    std::shared_ptr<const PreparedParams> score_params_; // shared by all rows that are scored
    std::optional<Plan> next_plan_;                      // from use_plan

    Plan plan_;
    bool planned_ = false;
    bool advised_ = false;          // advice is given once per engine
    std::vector<int64_t> plan_ids_; // row of the plan -> id, or -1
    std::vector<int64_t>
        last_group_of_;    // prefix -> the last group that uses it; only if some prefix has a head
    double head_cost_ = 0; // LoadedModel::head_cost
    std::vector<char> prefix_counted_; // prefix -> its tokens are no longer in plan_tokens_left_
    int64_t next_group_ = 0;           // all groups before it have been placed

    std::unordered_map<Job *, std::unique_ptr<Job>> jobs_;
    std::vector<Job *> finished_jobs_; // in this step
    int64_t unusual_jobs_ = 0;         // jobs other than one row with one request
    Status failed_;
    bool running_ = false; // prevents step and run from being called from run's own callback

    std::atomic<bool> interrupted_{false};
    std::atomic<int64_t> next_id_{0}; // the rows' next_id(), for cancel()
    std::mutex cancel_mutex_;
    Cancels cancels_;
    std::atomic<bool> cancels_waiting_{false};

    batchllm_stats stats_{};
    int64_t plan_tokens_left_ = 0; // to compute for groups that have not been placed
    int64_t prompt_tokens_done_ = 0;
    int64_t lost_tokens_ = 0;  // generated on devices that have since failed, for rows without a
                               // result
    StepCounts last_counts_{}; // of the current step
    std::optional<std::chrono::steady_clock::time_point> first_step_;
};

} // namespace batchllm
