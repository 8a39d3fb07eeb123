// One iteration: put the next batches in flight, collect the one that is ready first, post-process it.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <new>
#include <thread>

#include "runtime/engine.h"

namespace batchllm {
namespace {

using Clock = std::chrono::steady_clock;

// How often devices are polled for which of them is ready: short compared with a batch.
constexpr auto poll_interval = std::chrono::microseconds(20);

// What the engine may be doing, for StepWatch.
constexpr const char *planning = "planning";
constexpr const char *scheduling = "scheduling for device";
constexpr const char *submitting = "handing a batch to device";
constexpr const char *sampling = "making masks, and sampling, on device";
constexpr const char *waiting = "waiting for device";
constexpr const char *waiting_for_any = "waiting for all devices, among them device";
constexpr const char *finishing = "processing the results of device";

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
    watch_->start();
    struct Leave {
        StepWatch *watch;
        ~Leave() { watch->end(); }
    } const leave{&*watch_};
    watch_->begin(planning);
    RETURN_IF_ERROR(build_groups());
    // A failure after this point leaves requests half advanced, so the engine stays failed.
    try {
        failed_ = run_started_step();
    } catch (const std::bad_alloc &) {
        // Short enough for a std::string not to allocate.
        failed_ = Status(BATCHLLM_ERROR_OUT_OF_MEMORY, "out of memory");
    } catch (const std::exception &fault) {
        failed_ = Status(BATCHLLM_ERROR_INTERNAL, "a fault");
        failed_ = Status(BATCHLLM_ERROR_INTERNAL, fault.what());
    }
    return failed_;
}

Status Engine::run_started_step() {
    apply_cancels();
    RETURN_IF_ERROR(run_on_what_is_left());
    const bool all_done = rows_done() == intake_.added;
    warn_of_cut_off(all_done);
    if (timeline_ && all_done) warn_once(timeline_->flush());
    return {};
}

Status Engine::run_lanes() {
    for (const auto &lane : lanes_) RETURN_IF_ERROR(fill(lane.get()));
    if (Lane *lane = next_lane()) RETURN_IF_ERROR(take_from(lane));
    // Between two steps, no batch is left without its masks.
    for (const auto &lane : lanes_) {
        if (lane->unsampled()) RETURN_IF_ERROR(take_from(lane.get()));
    }
    if (rows_done() < intake_.added) return {};
    // Whatever is still in flight belongs to rows that have ended.
    for (const auto &lane : lanes_) {
        while (lane->in_flight() > 0) RETURN_IF_ERROR(take_from(lane.get()));
    }
    return {};
}

// ---- Schedule, and put in flight ----

Status Engine::fill(Lane *lane) {
    while (lane->takes_another()) {
        const TokenBatch *batch = nullptr;
        {
            const Stopwatch watch(&stats_.schedule_seconds);
            watch_->begin(scheduling, lane->device());
            RETURN_IF_ERROR(place_groups());
            batch = &lane->next_batch();
        }
        if (batch->tokens.empty()) break;
        watch_->begin(submitting, lane->device(), &lane->newest().counts);
        RETURN_IF_ERROR(lane->forward(*batch));
        // If the masks depend on the previous batch, this one is sampled once that one has been
        // collected.
        if (lane->in_flight() == 1 || !RowMasks::wait_for_samples(lane->newest())) {
            RETURN_IF_ERROR(sample_newest(lane));
        }
    }
    return {};
}

// Runs while the device computes the batch.
Status Engine::sample_newest(Lane *lane) {
    watch_->begin(sampling, lane->device(), &lane->newest().counts);
    RETURN_IF_ERROR(
        lane->sample(masks_.make(lane->newest(), [this]() -> ThreadPool & { return pool(); })));
    take_forced(lane);
    return {};
}

// Uses the tokens that must come next instead of what the batch samples.
void Engine::take_forced(Lane *lane) {
    for (Sequence *sequence : masks_.forced()) {
        lane->scheduler().discard_sample(sequence);
        for (const int32_t token : std::exchange(sequence->constrained->forced, {})) {
            if (!sequence->done && accept_constrained(sequence, token)) {
                accept_token(sequence, token);
            }
        }
        if (sequence->done) lane->scheduler().drop(sequence);
    }
    for (Job *job : finished_jobs_) end_job(job);
    finished_jobs_.clear();
}

// ---- Collect ----

// The lane whose oldest batch is ready, or will be first; null: nothing is in flight. If several
// are ready, the one that has computed for the shortest time, so that the simulated clocks of `sim`
// stay close together.
Lane *Engine::next_lane() {
    bool waits = false;
    while (true) {
        Lane *best = nullptr;
        int32_t busy = 0;
        Lane *last_busy = nullptr;
        for (const auto &lane : lanes_) {
            if (lane->in_flight() == 0) continue;
            ++busy;
            last_busy = lane.get();
            if (lane->ready() && (best == nullptr || lane->seconds() < best->seconds())) {
                best = lane.get();
            }
        }
        if (best != nullptr || busy <= 1) return best != nullptr ? best : last_busy;
        if (!waits)
            watch_->begin(waiting_for_any, last_busy->device(), &last_busy->record().counts);
        waits = true;
        std::this_thread::sleep_for(poll_interval);
    }
}

Status Engine::take_from(Lane *lane) {
    watch_->begin(waiting, lane->device(), &lane->record().counts);
    RETURN_IF_ERROR(lane->collect());
    watch_->begin(finishing, lane->device(), &lane->record().counts);
    post_process(lane);
    return lane->unsampled() ? sample_newest(lane) : Status();
}

// ---- Post-process ----

void Engine::post_process(Lane *lane) {
    const BatchRecord &record = lane->record();
    const BatchOutput &output = lane->output();
    ++stats_.steps;
    stats_.preemptions += record.counts.preemptions;
    stats_.recomputed_tokens += record.counts.recomputed_tokens;
    prompt_tokens_done_ += record.counts.prompt_tokens;
    last_counts_.decode_tokens += record.counts.decode_tokens;
    last_counts_.own_tokens += record.counts.own_tokens;
    last_counts_.prefix_tokens += record.counts.prefix_tokens;
    if (timeline_) {
        warn_once(timeline_->write(stats_.steps, lane->batch_seconds() * 1e3, record.counts,
                                   lane->device()));
    }
    if (report_ != nullptr) report_batch(*lane);

    size_t target = 0;
    size_t state = 0; // in output.hidden
    const auto hidden = static_cast<size_t>(lane->info().hidden);
    for (size_t i = 0; i < record.sampled.size(); ++i) {
        Sequence *sequence = static_cast<Sequence *>(record.sampled[i]);
        const auto targets = static_cast<size_t>(record.targets[i]);
        if (sequence != nullptr && record.tasks[i] == Task::score &&
            sequence->task == Task::generate) {
            accept_prompt_score(sequence, output.target_logprobs[target], output.samples[i]);
        } else if (sequence != nullptr && record.tasks[i] == Task::score) {
            accept_scores(sequence, {output.target_logprobs.data() + target, targets},
                          output.samples[i].finite);
        } else if (sequence != nullptr && embedded(record.tasks[i])) {
            accept_hidden(sequence, {output.hidden.data() + state * hidden, hidden},
                          record.tokens[i], output.samples[i].finite);
        } else if (sequence != nullptr) {
            accept_sample(sequence, output.samples[i]);
        }
        target += targets;
        state += embedded(record.tasks[i]) ? 1 : 0;
    }
    {
        const Stopwatch watch(&stats_.schedule_seconds);
        lane->finish();
    }
    for (Job *job : finished_jobs_) end_job(job);
    finished_jobs_.clear();
}

bool Engine::ends_row(const SamplingParams &params, int32_t token) const {
    return (!params.ignore_eos && contains(eos_tokens_, token)) ||
           contains(params.stop_tokens, token);
}

void Engine::accept_sample(Sequence *sequence, const SampleOutput &sample) {
    if (sequence->done) return;
    if (!sample.finite) {
        fail(sequence, BATCHLLM_ERROR_ROW_NOT_A_NUMBER,
             forbids_tokens(*sequence->params) ? "the model's logits are not finite, or "
                                                 "min_tokens, bad_words and what else the row "
                                                 "asks for leave no token"
                                               : "the model's logits are not finite");
        return;
    }
    const SamplingParams &params = *sequence->params;
    if (sequence->constrained != nullptr && !accept_constrained(sequence, sample.token)) return;
    if (params.logprobs >= 0) sequence->logprobs.add(sample.logprob, sample.top);
    accept_token(sequence, sample.token);
}

void Engine::accept_token(Sequence *sequence, int32_t token) {
    const SamplingParams &params = *sequence->params;
    sequence->output.push_back(token);
    ++stats_.completion_tokens;
    spend(*sequence, 1);
    const bool ended = sequence->constrained != nullptr && sequence->constrained->state.ended();
    const bool may_stop = static_cast<int32_t>(sequence->output.size()) > params.min_tokens;
    if (sequence->stop != nullptr && !may_stop) sequence->stop->pass(token);
    if (ended || (may_stop && ends_row(params, token))) {
        sequence->text_tokens = static_cast<int32_t>(sequence->output.size()) - 1;
        finish(sequence, BATCHLLM_FINISH_STOP);
    } else if (may_stop && sequence->stop != nullptr && sequence->stop->push(token)) {
        finish(sequence, BATCHLLM_FINISH_STOP);
    } else if (sequence->constrained != nullptr && sequence->constrained->state.exhausted()) {
        if (sequence->stop != nullptr) sequence->stop->end();
        finish(sequence, BATCHLLM_FINISH_STOP);
    } else if (static_cast<int32_t>(sequence->output.size()) >= sequence->max_tokens) {
        const bool stopped = sequence->stop != nullptr && sequence->stop->end();
        finish(sequence, stopped ? BATCHLLM_FINISH_STOP : BATCHLLM_FINISH_LENGTH);
    }
}

void Engine::accept_hidden(Sequence *sequence, std::span<const float> sum, int32_t tokens,
                           bool finite) {
    if (sequence->done) return;
    if (!finite) {
        fail(sequence, BATCHLLM_ERROR_ROW_NOT_A_NUMBER, "the model's hidden states are not finite");
        return;
    }
    std::vector<float> &hidden = sequence->hidden;
    hidden.resize(sum.size());
    for (size_t i = 0; i < sum.size(); ++i) hidden[i] += sum[i];
    sequence->pooled += tokens;
    if (sequence->pooled < sequence->wanted_positions) return;
    if (sequence->task == Task::classify) {
        sequence->labels = classifier_->scores(hidden);
        finish(sequence, BATCHLLM_FINISH_CLASSIFIED);
    } else {
        finish_embedding(sequence->job->params->form, sequence->pooled, &hidden);
        finish(sequence, BATCHLLM_FINISH_EMBEDDED);
    }
}

// Advances the sequence's constraint. False: it cannot continue, and the row has failed.
bool Engine::accept_constrained(Sequence *sequence, int32_t token) {
    Constrained &constrained = *sequence->constrained;
    if (constrained.failed.ok()) constrained.failed = constrained.state.advance(token);
    if (constrained.failed.ok()) return true;
    fail(sequence, BATCHLLM_ERROR_ROW_CONSTRAINT, constrained.failed.message());
    return false;
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

// A prompt's last scores may arrive with the batch that ends the row, after its sample.
void Engine::accept_prompt_score(Sequence *sequence, float logprob, const SampleOutput &output) {
    if (output.finite && !std::isnan(logprob)) {
        sequence->prompt_logprobs.add(logprob, output.top);
        return;
    }
    constexpr const char *message = "the model's logits of the prompt are not finite";
    if (!sequence->done) return fail(sequence, BATCHLLM_ERROR_ROW_NOT_A_NUMBER, message);
    if (sequence->status != BATCHLLM_OK) return;
    sequence->status = BATCHLLM_ERROR_ROW_NOT_A_NUMBER;
    sequence->error = message;
    sequence->finish = BATCHLLM_FINISH_ERROR;
}

void Engine::finish(Sequence *sequence, int32_t reason) {
    sequence->done = true;
    sequence->finish = reason;
    spend(*sequence, sequence->max_tokens - static_cast<int64_t>(sequence->output.size()));
    if (--sequence->job->unfinished == 0) finished_jobs_.push_back(sequence->job);
}

void Engine::fail(Sequence *sequence, int32_t status, std::string message) {
    sequence->status = status;
    sequence->error = std::move(message);
    finish(sequence, BATCHLLM_FINISH_ERROR);
}

// Counts tokens as used up: the sequence will no longer generate them.
void Engine::spend(const Sequence &sequence, int64_t tokens) {
    intake_.generation -= tokens;
    sequence.job->lane->generation -= tokens;
}

// Logs an error of the timeline, which reports it only once.
void Engine::warn_once(const Status &status) {
    if (!status.ok()) log_(BATCHLLM_LOG_WARNING, status.message());
}

// If memory runs out, the warning is left out.
void Engine::warn_of_cut_off(bool all_done) {
    try {
        const std::string warning = cut_off_.take_warning(all_done);
        if (!warning.empty()) log_(BATCHLLM_LOG_WARNING, warning);
    } catch (const std::bad_alloc &) {}
}

} // namespace batchllm
