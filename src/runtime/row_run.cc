#include "runtime/row_run.h"

#include <algorithm>
#include <span>

namespace batchllm {
namespace {

void set_prompt(const Row &row, std::span<const int32_t> tokens, int32_t shareable,
                Sequence *sequence) {
    sequence->prompt = {tokens.data(), static_cast<int32_t>(tokens.size()), shareable,
                        row.params->salt};
}

// All candidates of a single token are scored by the logits at the prompt's last position.
void make_candidates_sequence(const Row &row, RowRun *run) {
    const ScoreSpec &score = *row.score;
    std::vector<int32_t> candidates;
    for (int32_t c = 0; c < score.count(); ++c) {
        if (score.length(c) == 1) candidates.push_back(score.continuation(c)[0]);
    }
    if (candidates.empty()) return;
    Sequence &sequence = run->sequences.emplace_back();
    set_prompt(row, {row.tokens, static_cast<size_t>(row.length)}, row.length - 1, &sequence);
    sequence.task = Task::score;
    sequence.wanted_positions = 1;
    sequence.target_offsets = {0, static_cast<int32_t>(candidates.size())};
    sequence.targets = std::move(candidates);
}

// A longer continuation is computed without its last token, since each token is scored by the
// logits of the position before it.
void make_continuation_sequence(const Row &row, std::span<const int32_t> continuation,
                                RowRun *run) {
    Sequence &sequence = run->sequences.emplace_back();
    sequence.own_tokens.reserve(static_cast<size_t>(row.length) + continuation.size() - 1);
    sequence.own_tokens.assign(row.tokens, row.tokens + row.length);
    sequence.own_tokens.insert(sequence.own_tokens.end(), continuation.begin(),
                               continuation.end() - 1);
    set_prompt(row, sequence.own_tokens, row.length - 1, &sequence);
    sequence.task = Task::score;
    sequence.wanted_positions = static_cast<int32_t>(continuation.size());
    sequence.targets.assign(continuation.begin(), continuation.end());
    for (int32_t i = 0; i <= sequence.wanted_positions; ++i) sequence.target_offsets.push_back(i);
}

void make_scored_sequences(const Row &row, RowRun *run) {
    const ScoreSpec &score = *row.score;
    int32_t longer = 0;
    for (int32_t c = 0; c < score.count(); ++c) longer += score.length(c) > 1;
    run->sequences.reserve(static_cast<size_t>(longer) + 1);
    make_candidates_sequence(row, run);
    for (int32_t c = 0; c < score.count(); ++c) {
        if (score.length(c) > 1) make_continuation_sequence(row, score.continuation(c), run);
    }
}

void make_sampled_sequences(const Row &row, const RunLimits &limits, RowRun *run) {
    const PreparedParams &params = *row.params;
    const int32_t count = computed_samples(params, limits.sharing);
    run->sequences.resize(static_cast<size_t>(count));
    for (int32_t i = 0; i < count; ++i) {
        Sequence &sequence = run->sequences[static_cast<size_t>(i)];
        const bool scored = i == 0 && row.wants_prompt_logprobs();
        set_prompt(row, {row.tokens, static_cast<size_t>(row.length)}, scored ? 0 : row.length - 1,
                   &sequence);
        if (scored) {
            sequence.targets.assign(row.tokens + 1, row.tokens + row.length);
            // What the model sees there, as a token.
            std::replace_if(
                sequence.targets.begin(), sequence.targets.end(),
                [](int32_t id) { return id >= first_picture_id; }, limits.picture_token);
        }
        sequence.max_tokens = clipped_max_tokens(params, row.length, limits.max_request_tokens);
        sequence.sample = i;
        // Only `sim` reads the key of a greedy row, whose answer comes from the prompt alone.
        sequence.random_key =
            params.greedy()
                ? token_fingerprint({row.tokens, static_cast<size_t>(row.length)}, params.salt)
                : random_key(limits.engine_seed, params.seed, row.tag, i);
        if (params.constraint != nullptr) {
            sequence.constrained = std::make_unique<Constrained>(params.constraint);
            sequence.constrained->takes_forced =
                params.logprobs < 0 && params.prompt_logprobs < 0 && params.bias.empty() &&
                params.stop_tokens.empty() && !forbids_tokens(params) &&
                limits.tokenizer != nullptr;
        }
        if (params.stops != nullptr && limits.tokenizer != nullptr) {
            sequence.stop.reset(
                new StopFinder{StreamDecoder(*limits.tokenizer, params.skip_special),
                               StopScanner(*params.stops),
                               {}});
        }
    }
}

// The hidden state of the last token, of the first, or the sum of all.
void make_embedded_sequence(const Row &row, RowRun *run) {
    Sequence &sequence = run->sequences.emplace_back();
    const int32_t length = row.computed_length();
    set_prompt(row, {row.tokens, static_cast<size_t>(length)}, row.shareable(), &sequence);
    sequence.task = row.task();
    sequence.wanted_positions = length - row.shareable();
}

// The tokens of the output that are text; the last one may have ended it.
std::span<const int32_t> text_tokens(const Sequence &sequence) {
    const std::span<const int32_t> output(sequence.output);
    return sequence.text_tokens < 0 ? output
                                    : output.first(static_cast<size_t>(sequence.text_tokens));
}

std::string text_of(const Sequence &sequence, const PreparedParams &params,
                    const Tokenizer *tokenizer) {
    if (tokenizer == nullptr) return {};
    if (sequence.stop != nullptr && sequence.stop->scanner.found()) {
        return sequence.stop->text;
    }
    const std::span<const int32_t> tokens = text_tokens(sequence);
    StreamDecoder decoder(*tokenizer, params.skip_special);
    const size_t passed = std::min(tokens.size(), static_cast<size_t>(params.min_tokens));
    std::string text;
    for (const int32_t token : tokens.first(passed)) text += decoder.push(token);
    std::string rest;
    for (const int32_t token : tokens.subspan(passed)) rest += decoder.push(token);
    rest += decoder.finish();
    if (params.stops == nullptr) return text + rest;
    // Only the text held back at the end, before an EOS or a cancellation, can complete one.
    StopScanner scanner(*params.stops);
    scanner.push(rest, &text);
    scanner.finish(&text);
    return text;
}

// Puts the scores of candidates and of longer continuations back into the row's order.
void collect_scores(const RowRun &run, Outcome *outcome) {
    const ScoreSpec &score = *run.score;
    size_t next_sequence = 0;
    const Sequence *candidates = nullptr;
    if (run.sequences.front().own_tokens.empty()) candidates = &run.sequences[next_sequence++];
    size_t next_candidate = 0;
    for (int32_t c = 0; c < score.count(); ++c) {
        const int32_t length = score.length(c);
        outcome->score_lengths.push_back(length);
        if (length == 1) {
            outcome->score_logprobs.push_back(candidates->score_logprobs[next_candidate++]);
            continue;
        }
        const std::vector<float> &logprobs = run.sequences[next_sequence++].score_logprobs;
        outcome->score_logprobs.insert(outcome->score_logprobs.end(), logprobs.begin(),
                                       logprobs.end());
    }
}

void add_scores(const RowRun &run, const RowRun::Answer &to, bool cancelled,
                std::deque<Outcome> *outcomes) {
    Outcome outcome;
    outcome.tag = to.tag;
    outcome.prompt_tokens = run.prompt_length;
    outcome.shared_tokens = run.prompt_length;
    outcome.finish = cancelled ? BATCHLLM_FINISH_CANCELLED : BATCHLLM_FINISH_SCORED;
    for (const Sequence &sequence : run.sequences) {
        outcome.shared_tokens =
            std::min<int64_t>(outcome.shared_tokens, run.shared_tokens(sequence));
    }
    for (const Sequence &sequence : run.sequences) {
        if (sequence.status == BATCHLLM_OK) continue;
        outcome.finish = BATCHLLM_FINISH_ERROR;
        outcome.status = sequence.status;
        outcome.error = sequence.error;
        break;
    }
    if (outcome.finish == BATCHLLM_FINISH_SCORED) collect_scores(run, &outcome);
    outcomes->push_back(std::move(outcome));
}

void add_embedded(const RowRun &run, const RowRun::Answer &to, bool cancelled,
                  std::deque<Outcome> *outcomes) {
    const Sequence &sequence = run.sequences.front();
    Outcome outcome;
    outcome.tag = to.tag;
    outcome.prompt_tokens = to.prompt_length;
    outcome.shared_tokens = std::min(run.shared_tokens(sequence), to.prompt_length);
    outcome.finish = cancelled ? BATCHLLM_FINISH_CANCELLED : sequence.finish;
    outcome.status = sequence.status;
    outcome.error = sequence.error;
    if (outcome.finish == BATCHLLM_FINISH_EMBEDDED) outcome.embedding = sequence.hidden;
    if (outcome.finish == BATCHLLM_FINISH_CLASSIFIED) outcome.labels = sequence.labels;
    outcomes->push_back(std::move(outcome));
}

// Takes the log-probabilities of the prompt if all of them are there.
void take_prompt_logprobs(const Sequence &sequence, Outcome *outcome) {
    if (sequence.targets.empty()) return;
    if (sequence.prompt_logprobs.values.size() < sequence.targets.size()) return;
    outcome->prompt_logprobs = sequence.prompt_logprobs;
}

// Whether one of the row's stop strings or stop tokens ended a text that has a constraint.
bool stopped(const Sequence &sequence) {
    if (sequence.finish != BATCHLLM_FINISH_STOP) return false;
    const bool found = sequence.stop != nullptr && sequence.stop->scanner.found();
    return found || (sequence.text_tokens >= 0 && !sequence.constrained->state.ended());
}

std::string decoded(std::span<const int32_t> tokens, const Tokenizer &tokenizer,
                    bool skip_special) {
    StreamDecoder decoder(tokenizer, skip_special);
    std::string text;
    for (const int32_t token : tokens) text += decoder.push(token);
    return text + decoder.finish();
}

// Whether the constraint accepts what a stop left of the text. The text may lack special tokens, such as what the constraint
// starts after; none follows that, so the stop has cut as many bytes from the text that has them.
bool meets_constraint(const Sequence &sequence, const PreparedParams &params,
                      const Tokenizer *tokenizer, const std::string &text) {
    if (tokenizer == nullptr || !stopped(sequence)) return true;
    const std::span<const int32_t> tokens = text_tokens(sequence);
    const size_t cut = decoded(tokens, *tokenizer, params.skip_special).size() - text.size();
    std::string whole = decoded(tokens, *tokenizer, false);
    whole.resize(whole.size() - std::min(whole.size(), cut));
    ConstraintState state(params.constraint);
    return state.advance_bytes(whole).ok() && state.complete();
}

void add_samples(const RowRun &run, const RowRun::Answer &to, const Tokenizer *tokenizer,
                 std::deque<Outcome> *outcomes) {
    for (int32_t sample = 0; sample < to.samples; ++sample) {
        const bool one_for_all = run.sequences.size() == 1;
        const Sequence &sequence = run.sequences[one_for_all ? 0 : static_cast<size_t>(sample)];
        Outcome outcome;
        outcome.tag = to.tag;
        outcome.sample = sample;
        outcome.status = sequence.status;
        outcome.error = sequence.error;
        outcome.finish = sequence.done ? sequence.finish : BATCHLLM_FINISH_CANCELLED;
        outcome.prompt_tokens = run.prompt_length;
        outcome.shared_tokens = run.shared_tokens(sequence);
        outcome.tokens = sequence.output;
        outcome.text = text_of(sequence, *run.params, tokenizer);
        if (sequence.constrained != nullptr) {
            outcome.constraint_started = sequence.constrained->state.started();
            outcome.constraint_met =
                meets_constraint(sequence, *run.params, tokenizer, outcome.text);
        }
        outcome.logprobs = sequence.logprobs;
        if (sample == 0) take_prompt_logprobs(sequence, &outcome);
        outcomes->push_back(std::move(outcome));
    }
}

} // namespace

int32_t RowRun::shared_tokens(const Sequence &sequence) const {
    // Equal rows and equal samples are answered by one computation of the whole prompt.
    const bool several = answers.size() > 1 || answers.front().samples > 1;
    if (several && score == nullptr && sequences.size() == 1) return prompt_length;
    return sequence.own_begin;
}

bool RowRun::any_answer_left() const {
    return std::any_of(answers.begin(), answers.end(), [](const Answer &a) { return !a.answered; });
}

int32_t computed_samples(const SamplingParams &params, bool sharing) {
    return sharing && params.greedy() ? 1 : params.samples;
}

int32_t clipped_max_tokens(const SamplingParams &params, int64_t prompt_length,
                           int64_t max_request_tokens) {
    return static_cast<int32_t>(
        std::min<int64_t>(params.max_tokens, max_request_tokens - prompt_length));
}

int64_t most_generated(const PreparedParams &params, int64_t prompt_length,
                       const RunLimits &limits) {
    if (params.task != Task::generate) return 0;
    return int64_t{clipped_max_tokens(params, prompt_length, limits.max_request_tokens)} *
           computed_samples(params, limits.sharing);
}

int64_t most_generated(const Row &row, const RunLimits &limits) {
    return row.task() == Task::generate ? most_generated(*row.params, row.length, limits) : 0;
}

int64_t logical_tokens(const RowRun &run, const RowRun::Answer &answer) {
    return int64_t{answer.samples} * run.sequences.front().prompt.length;
}

int64_t logical_tokens(const RowRun &run, const Sequence &sequence) {
    if (run.score != nullptr || run.sequences.size() > 1) return sequence.prompt.length;
    int64_t tokens = 0;
    for (const RowRun::Answer &answer : run.answers) tokens += logical_tokens(run, answer);
    return tokens;
}

std::unique_ptr<RowRun> make_run(RowStore *rows, const std::vector<int64_t> &ids,
                                 const RunLimits &limits) {
    auto run = std::make_unique<RowRun>();
    const Row &row = *rows->find(ids.front());
    run->params = row.params;
    run->score = row.score.get();
    run->task = row.task();
    run->prompt_length = row.length;
    run->computed_length = row.computed_length();
    run->pictures = row.pictures;
    for (const int64_t id : ids) {
        const Row &equal = *rows->find(id);
        const int32_t samples = equal.score != nullptr ? 1 : equal.params->samples;
        run->answers.push_back({id, equal.tag, samples, equal.length, false});
    }
    if (run->task == Task::score) {
        make_scored_sequences(row, run.get());
    } else if (embedded(run->task)) {
        make_embedded_sequence(row, run.get());
    } else {
        make_sampled_sequences(row, limits, run.get());
    }
    for (Sequence &sequence : run->sequences) {
        sequence.run = run.get();
        sequence.params = run->params.get();
        sequence.row = ids.front();
    }
    run->unfinished = static_cast<int32_t>(run->sequences.size());
    return run;
}

void add_outcomes(const RowRun &run, const RowRun::Answer &to, bool cancelled,
                  const Tokenizer *tokenizer, std::deque<Outcome> *outcomes) {
    OutcomesOfRow made(outcomes);
    if (run.task == Task::score) {
        add_scores(run, to, cancelled, outcomes);
    } else if (embedded(run.task)) {
        add_embedded(run, to, cancelled, outcomes);
    } else {
        add_samples(run, to, tokenizer, outcomes);
    }
    made.keep();
}

} // namespace batchllm
