// The ends of jobs and rows: results, and cancelled rows.
#include <algorithm>

#include "runtime/engine.h"

namespace batchllm {

// Adds the results of one of a job's rows.
void Engine::give(const Job &job, Job::Answer *to, bool cancelled) {
    if (to->given) return;
    const size_t before = intake_.outcomes.size();
    answer(job, *to, cancelled, tokenizer_.get(), &intake_.outcomes);
    to->given = true;
    ++stats_.rows_done;
    for (size_t i = before; i < intake_.outcomes.size(); ++i)
        cut_off_.count(*job.params, intake_.outcomes[i]);
    for (size_t i = before; i < intake_.outcomes.size(); ++i) {
        if (intake_.outcomes[i].status == BATCHLLM_OK) continue;
        ++stats_.rows_failed;
        break;
    }
}

// Ends a job with nothing left to compute, which the scheduler has already released.
void Engine::end_job(Job *job) {
    for (Job::Answer &to : job->answers) give(*job, &to, false);
    if (job->group_run != nullptr) report_end(*job);
    if (job->answers.size() > 1 || job->sequences.size() > 1) --unusual_jobs_;
    for (const Job::Answer &to : job->answers) intake_.rows.release(to.row);
    jobs_.erase(job);
}

void Engine::cancel_waiting(Row *row) {
    const int32_t samples = row->score != nullptr ? 1 : row->params->samples;
    OutcomesOfRow made(&intake_.outcomes);
    for (int32_t sample = 0; sample < samples; ++sample) {
        Outcome outcome;
        outcome.tag = row->tag;
        outcome.sample = sample;
        outcome.finish = BATCHLLM_FINISH_CANCELLED;
        outcome.prompt_tokens = row->length;
        intake_.outcomes.push_back(std::move(outcome));
    }
    made.keep();
    // Its memory is released when the plan reaches it.
    row->state = RowState::answered;
    intake_.generation -= generation_of(*row);
    ++stats_.rows_done;
}

// Answers the job's rows with these tags. The job continues if it has other rows.
void Engine::cancel_started(Job *job, const Cancels &cancels) {
    for (Job::Answer &to : job->answers) {
        if (cancels.name(to.tag, to.row)) give(*job, &to, true);
    }
    if (job->any_answer_left()) return;
    for (Sequence &sequence : job->sequences) {
        if (sequence.done) continue;
        sequence.done = true;
        spend(sequence, sequence.max_tokens - static_cast<int64_t>(sequence.output.size()));
        job->lane->scheduler().drop(&sequence);
    }
    end_job(job);
}

void Engine::apply_cancels() {
    if (!cancels_waiting_.load(std::memory_order_acquire)) return;
    Cancels cancels;
    {
        std::lock_guard lock(cancel_mutex_);
        std::swap(cancels, cancels_);
        cancels_waiting_.store(false, std::memory_order_relaxed);
    }
    std::vector<Job *> started;
    for (const auto &[job, owner] : jobs_) {
        const bool named =
            std::any_of(job->answers.begin(), job->answers.end(), [&](const Job::Answer &to) {
                return !to.given && cancels.name(to.tag, to.row);
            });
        if (named) started.push_back(job);
    }
    std::sort(started.begin(), started.end(), [](const Job *a, const Job *b) {
        return a->answers.front().row < b->answers.front().row;
    });
    for (Job *job : started) cancel_started(job, cancels);
    intake_.rows.for_each([&](int64_t id, Row &row) {
        if (row.state != RowState::waiting) return;
        if (cancels.name(row.tag, id)) cancel_waiting(&row);
    });
}

} // namespace batchllm
