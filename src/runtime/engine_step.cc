// One iteration: schedule, run the backend, post-process.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <new>

#include "runtime/engine.h"

namespace batchllm {
namespace {

using Clock = std::chrono::steady_clock;

// Adds the time between its construction and destruction.
class Stopwatch {
  public:
    explicit Stopwatch(double *seconds) : seconds_(seconds), start_(Clock::now()) {}
    Stopwatch(const Stopwatch &) = delete;
    Stopwatch &operator=(const Stopwatch &) = delete;
    ~Stopwatch() { *seconds_ += std::chrono::duration<double>(Clock::now() - start_).count(); }

  private:
    double *seconds_;
    Clock::time_point start_;
};

bool contains(const std::vector<int32_t> &tokens, int32_t token) {
    return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
}

} // namespace

Status Engine::run_step() {
    RETURN_IF_ERROR(failed_);
    const Stopwatch watch(&stats_.run_seconds);
    if (!first_step_) first_step_ = Clock::now();
    last_counts_ = {};
    RETURN_IF_ERROR(build_groups());
    // From here on a failure leaves requests half moved on: the engine stays failed.
    try {
        failed_ = run_started_step();
    } catch (const std::bad_alloc &) {
        failed_ = Status(BATCHLLM_ERROR_OUT_OF_MEMORY, "out of memory");
    } catch (const std::exception &fault) {
        failed_ = Status(BATCHLLM_ERROR_INTERNAL, fault.what());
    }
    return failed_;
}

Status Engine::run_started_step() {
    apply_cancels();
    const TokenBatch *batch = nullptr;
    RETURN_IF_ERROR(schedule(&batch));
    if (!batch->tokens.empty()) {
        RETURN_IF_ERROR(run_backend(*batch));
        post_process(*batch);
    }
    if (timeline_ && rows_done() == intake_.added) warn_once(timeline_->flush());
    return {};
}

// ---- Schedule ----

Status Engine::schedule(const TokenBatch **batch) {
    const Stopwatch watch(&stats_.schedule_seconds);
    RETURN_IF_ERROR(hand_over());
    *batch = &scheduler_->next_step();
    last_counts_ = scheduler_->counts();
    return {};
}

// ---- Run ----

Status Engine::run_backend(const TokenBatch &batch) {
    RETURN_IF_ERROR(backend_->run(batch, &output_));
    stats_.backend_seconds += backend_->last_run_seconds();
    return {};
}

// ---- Post-process ----

void Engine::post_process(const TokenBatch &batch) {
    ++stats_.steps;
    stats_.preemptions += last_counts_.preemptions;
    stats_.recomputed_tokens += last_counts_.recomputed_tokens;
    prompt_tokens_done_ +=
        last_counts_.own_tokens + last_counts_.prefix_tokens - last_counts_.recomputed_tokens;

    size_t target = 0;
    const std::span<Request *const> sampled = scheduler_->sampled();
    for (size_t i = 0; i < batch.logits.size(); ++i) {
        Sequence *sequence = static_cast<Sequence *>(sampled[i]);
        const size_t targets = batch.logits[i].targets.size();
        if (targets > 0) {
            accept_scores(sequence, {output_.target_logprobs.data() + target, targets},
                          output_.samples[i].finite);
            target += targets;
        } else {
            accept_sample(sequence, output_.samples[i]);
        }
    }
    {
        const Stopwatch watch(&stats_.schedule_seconds);
        scheduler_->finish_step();
    }
    for (Job *job : finished_jobs_) end_job(job);
    finished_jobs_.clear();
    write_timeline();
}

bool Engine::ends_row(const SamplingParams &params, int32_t token) const {
    return (!params.ignore_eos && contains(eos_tokens_, token)) ||
           contains(params.stop_tokens, token);
}

void Engine::accept_sample(Sequence *sequence, const SampleOutput &sample) {
    if (sequence->done) return;
    if (!sample.finite) {
        fail(sequence, BATCHLLM_ERROR_ROW_NOT_A_NUMBER, "the model's logits are not finite");
        return;
    }
    // A request that was preempted while it generated computes its last token with its prompt: the
    // one token of such a batch that is new is not the prompt's.
    if (sequence->state == RequestState::prefilling && !sequence->output.empty()) {
        --prompt_tokens_done_;
    }
    const SamplingParams &params = *sequence->params;
    sequence->output.push_back(sample.token);
    ++stats_.completion_tokens;
    --intake_.generation;
    if (params.logprobs >= 0) {
        sequence->logprobs.push_back(sample.logprob);
        sequence->top_counts.push_back(static_cast<int32_t>(sample.top.size()));
        sequence->top.insert(sequence->top.end(), sample.top.begin(), sample.top.end());
    }
    if (ends_row(params, sample.token)) {
        sequence->text_tokens = static_cast<int32_t>(sequence->output.size()) - 1;
        finish(sequence, BATCHLLM_FINISH_STOP);
    } else if (sequence->stop != nullptr && sequence->stop->push(sample.token)) {
        finish(sequence, BATCHLLM_FINISH_STOP);
    } else if (static_cast<int32_t>(sequence->output.size()) >= sequence->max_tokens) {
        finish(sequence, BATCHLLM_FINISH_LENGTH);
    }
}

void Engine::accept_scores(Sequence *sequence, std::span<const float> logprobs, bool finite) {
    if (sequence->done) return;
    const auto is_nan = [](float logprob) { return std::isnan(logprob); };
    if (!finite || std::any_of(logprobs.begin(), logprobs.end(), is_nan)) {
        fail(sequence, BATCHLLM_ERROR_ROW_NOT_A_NUMBER, "the model's logits are not finite");
        return;
    }
    sequence->score_logprobs.insert(sequence->score_logprobs.end(), logprobs.begin(),
                                    logprobs.end());
    if (sequence->score_logprobs.size() == sequence->targets.size()) {
        finish(sequence, BATCHLLM_FINISH_SCORED);
    }
}

void Engine::finish(Sequence *sequence, int32_t reason) {
    sequence->done = true;
    sequence->finish = reason;
    intake_.generation -= sequence->max_tokens - static_cast<int64_t>(sequence->output.size());
    if (--sequence->job->unfinished == 0) finished_jobs_.push_back(sequence->job);
}

void Engine::fail(Sequence *sequence, int32_t status, const char *message) {
    sequence->status = status;
    sequence->error = message;
    finish(sequence, BATCHLLM_FINISH_ERROR);
}

void Engine::write_timeline() {
    if (!timeline_) return;
    warn_once(timeline_->write(stats_.steps, backend_->last_run_seconds() * 1e3, last_counts_));
}

// The timeline says once that it cannot go on.
void Engine::warn_once(const Status &status) {
    if (!status.ok()) log_(BATCHLLM_LOG_WARNING, status.message());
}

// ---- Ends of jobs and rows ----

// The results for one of a job's rows.
void Engine::give(const Job &job, Job::Answer *to, bool cancelled) {
    if (to->given) return;
    const size_t before = intake_.outcomes.size();
    answer(job, *to, cancelled, tokenizer_.get(), &intake_.outcomes);
    to->given = true;
    ++stats_.rows_done;
    for (size_t i = before; i < intake_.outcomes.size(); ++i) {
        if (intake_.outcomes[i].status == BATCHLLM_OK) continue;
        ++stats_.rows_failed;
        break;
    }
}

// A job of which nothing is left to compute, and which the scheduler no longer holds.
void Engine::end_job(Job *job) {
    for (Job::Answer &to : job->answers) give(*job, &to, false);
    if (job->answers.size() > 1 || job->sequences.size() > 1) --unusual_jobs_;
    for (const Job::Answer &to : job->answers) intake_.rows.release(to.row);
    jobs_.erase(job);
}

int64_t Engine::generation_of(const Row &row) const {
    if (row.score != nullptr) return 0;
    const int64_t tokens = clipped_max_tokens(*row.params, row.length, max_request_tokens_);
    return tokens * (row.params->greedy() ? 1 : row.params->samples);
}

void Engine::cancel_waiting(Row *row) {
    const int32_t samples = row->score != nullptr ? 1 : row->params->samples;
    for (int32_t sample = 0; sample < samples; ++sample) {
        Outcome outcome;
        outcome.tag = row->tag;
        outcome.sample = sample;
        outcome.finish = BATCHLLM_FINISH_CANCELLED;
        outcome.prompt_tokens = row->length;
        outcome.has_logprobs = row->score == nullptr && row->params->logprobs >= 0;
        intake_.outcomes.push_back(std::move(outcome));
    }
    // Its memory goes when the plan comes to it.
    row->state = RowState::answered;
    intake_.generation -= generation_of(*row);
    ++stats_.rows_done;
}

// Answers the job's rows with these tags. The job goes on for the others, if there are any.
void Engine::cancel_started(Job *job, const std::unordered_map<uint64_t, int64_t> &below) {
    for (Job::Answer &to : job->answers) {
        const auto found = below.find(to.tag);
        if (found != below.end() && to.row < found->second) give(*job, &to, true);
    }
    if (job->any_answer_left()) return;
    for (Sequence &sequence : job->sequences) {
        if (sequence.done) continue;
        sequence.done = true;
        intake_.generation -= sequence.max_tokens - static_cast<int64_t>(sequence.output.size());
        scheduler_->drop(&sequence);
    }
    end_job(job);
}

void Engine::apply_cancels() {
    if (!cancels_waiting_.load(std::memory_order_acquire)) return;
    std::unordered_map<uint64_t, int64_t> below;
    {
        std::lock_guard lock(cancel_mutex_);
        below.swap(cancels_);
        cancels_waiting_.store(false, std::memory_order_relaxed);
    }
    std::vector<Job *> started;
    for (const auto &[job, owner] : jobs_) {
        const bool named =
            std::any_of(job->answers.begin(), job->answers.end(), [&](const Job::Answer &to) {
                return !to.given && below.count(to.tag) > 0;
            });
        if (named) started.push_back(job);
    }
    std::sort(started.begin(), started.end(), [](const Job *a, const Job *b) {
        return a->answers.front().row < b->answers.front().row;
    });
    for (Job *job : started) cancel_started(job, below);
    intake_.rows.for_each([&](int64_t id, Row &row) {
        if (row.state != RowState::waiting) return;
        const auto found = below.find(row.tag);
        if (found != below.end() && id < found->second) cancel_waiting(&row);
    });
}

} // namespace batchllm
