#include "runtime/answers.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace batchllm {
namespace {

bool contains(std::span<const int32_t> tokens, int32_t token) {
    return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
}

} // namespace

// ---- Post-processing ----

int64_t Answers::accept(const BatchRecord &record, const BatchOutput &output, size_t hidden) {
    settled_ = 0;
    size_t target = 0;
    size_t state = 0;    // in output.hidden
    bool follows = true; // every token before the sample is the sequence's own
    int32_t ahead = 0;   // how many of them were proposed
    for (size_t i = 0; i < record.sampled.size(); ++i) {
        Sequence *sequence = static_cast<Sequence *>(record.sampled[i]);
        const auto targets = static_cast<size_t>(record.targets[i]);
        const int32_t proposed = record.proposed[i];
        ahead = proposed < 0 ? 0 : ahead + 1;
        follows = proposed < 0 || (follows && output.samples[i - 1].token == proposed);
        if (sequence != nullptr && sequence->constrained != nullptr)
            follows = follows && ahead <= sequence->constrained->masked_ahead;
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
            if (proposed >= 0) ++drafts_.proposed;
            if (proposed >= 0 && follows && !sequence->done) ++drafts_.accepted;
            if (follows) accept_sample(sequence, output.samples[i]);
        }
        target += targets;
        state += embedded(record.tasks[i]) ? 1 : 0;
    }
    return settled_;
}

int64_t Answers::accept_forced(Sequence *sequence) {
    settled_ = 0;
    for (const int32_t token : std::exchange(sequence->constrained->forced, {})) {
        if (!sequence->done && accept_constrained(sequence, token)) accept_token(sequence, token);
    }
    return settled_;
}

bool Answers::ends_row(const SamplingParams &params, int32_t token) const {
    return (!params.ignore_eos && contains(reader_.eos_tokens(), token)) ||
           contains(params.stop_tokens, token);
}

void Answers::accept_sample(Sequence *sequence, const SampleOutput &sample) {
    if (sequence->done) return;
    if (!sample.finite) {
        fail(sequence, BATCHLLM_ERROR_ROW_NOT_A_NUMBER,
             forbids_tokens(*sequence->params) || !sequence->params->bias.empty()
                 ? "the model's logits are not finite, or min_tokens, bad_words, logit_bias and "
                   "what else the row asks for leave no token"
                 : "the model's logits are not finite");
        return;
    }
    const SamplingParams &params = *sequence->params;
    if (sequence->constrained != nullptr && !accept_constrained(sequence, sample.token)) return;
    if (params.logprobs >= 0) sequence->logprobs.add(sample.logprob, sample.top);
    accept_token(sequence, sample.token);
}

void Answers::accept_token(Sequence *sequence, int32_t token) {
    const SamplingParams &params = *sequence->params;
    sequence->output.push_back(token);
    ++completion_tokens_;
    ++settled_;
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

void Answers::accept_hidden(Sequence *sequence, std::span<const float> sum, int32_t tokens,
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
        sequence->labels = reader_.classifier()->scores(hidden);
        const auto is_finite = [](float logit) { return std::isfinite(logit); };
        if (!std::ranges::all_of(sequence->labels.logits, is_finite)) {
            fail(sequence, BATCHLLM_ERROR_ROW_NOT_A_NUMBER, "the labels' logits are not finite");
            return;
        }
        finish(sequence, BATCHLLM_FINISH_CLASSIFIED);
    } else {
        finish_embedding(sequence->run->params->form, sequence->pooled, &hidden);
        finish(sequence, BATCHLLM_FINISH_EMBEDDED);
    }
}

// Advances the sequence's constraint. False: it cannot continue, and the row has failed.
bool Answers::accept_constrained(Sequence *sequence, int32_t token) {
    Constrained &constrained = *sequence->constrained;
    if (constrained.failed.ok()) constrained.failed = constrained.state.advance(token);
    if (constrained.failed.ok()) return true;
    fail(sequence, BATCHLLM_ERROR_ROW_CONSTRAINT, constrained.failed.message());
    return false;
}

void Answers::accept_scores(Sequence *sequence, std::span<const float> logprobs, bool finite) {
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
void Answers::accept_prompt_score(Sequence *sequence, float logprob, const SampleOutput &output) {
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

void Answers::finish(Sequence *sequence, int32_t reason) {
    sequence->done = true;
    sequence->finish = reason;
    settled_ += sequence->max_tokens - static_cast<int64_t>(sequence->output.size());
    if (--sequence->run->unfinished == 0) ended_.push_back(sequence->run);
}

void Answers::fail(Sequence *sequence, int32_t status, std::string message) {
    sequence->status = status;
    sequence->error = std::move(message);
    finish(sequence, BATCHLLM_FINISH_ERROR);
}

void Answers::fail(RowRun *run, const Status &why) {
    for (Sequence &sequence : run->sequences) {
        if (sequence.finish == 0) fail(&sequence, why.code(), why.message());
    }
}

// ---- Results ----

void Answers::refuse(uint64_t tag, int64_t prompt_tokens, int32_t samples, const Status &why) {
    for (int32_t sample = 0; sample < samples; ++sample) {
        Outcome outcome;
        outcome.tag = tag;
        outcome.status = why.code();
        outcome.error = why.message();
        outcome.sample = sample;
        outcome.prompt_tokens = prompt_tokens;
        outcomes_.push_back(std::move(outcome));
    }
}

void Answers::take_back(size_t waiting) {
    while (outcomes_.size() > waiting) outcomes_.pop_back();
}

void Answers::answer(const RowRun &run, RowRun::Answer *to, bool cancelled) {
    if (to->answered) return;
    const size_t before = outcomes_.size();
    add_outcomes(run, *to, cancelled, reader_.tokenizer(), &outcomes_);
    to->answered = true;
    ++answered_;
    for (size_t i = before; i < outcomes_.size(); ++i) cut_off_.count(*run.params, outcomes_[i]);
    for (size_t i = before; i < outcomes_.size(); ++i) {
        if (outcomes_[i].status == BATCHLLM_OK) continue;
        ++failed_;
        break;
    }
}

void Answers::answer(RowRun *run) {
    for (RowRun::Answer &to : run->answers) answer(*run, &to, false);
}

void Answers::cancel(RowRun *run, const Cancels &cancels) {
    for (RowRun::Answer &to : run->answers) {
        if (cancels.name(to.tag, to.row)) answer(*run, &to, true);
    }
}

void Answers::cancel(const Row &waiting) {
    const int32_t samples = waiting.score != nullptr ? 1 : waiting.params->samples;
    OutcomesOfRow made(&outcomes_);
    for (int32_t sample = 0; sample < samples; ++sample) {
        Outcome outcome;
        outcome.tag = waiting.tag;
        outcome.sample = sample;
        outcome.finish = BATCHLLM_FINISH_CANCELLED;
        outcome.prompt_tokens = waiting.length;
        outcomes_.push_back(std::move(outcome));
    }
    made.keep();
    ++answered_;
}

void Answers::lose_tokens(int64_t tokens) {
    completion_tokens_ -= tokens;
    lost_tokens_ += tokens;
}

std::unique_ptr<ResultBatch> Answers::poll(int64_t max_results) {
    return ResultBatch::take(&outcomes_, max_results);
}

void Answers::add_to(batchllm_stats *stats) const {
    stats->rows_done += rows_done();
    stats->rows_failed += refused_ + failed_;
    stats->completion_tokens += completion_tokens_;
    stats->constrained_results += cut_off_.constrained();
    stats->cut_off_results += cut_off_.cut();
    stats->draft_tokens += drafts_.proposed;
    stats->draft_tokens_accepted += drafts_.accepted;
}

} // namespace batchllm
