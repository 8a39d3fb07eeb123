#include "runtime/outcome.h"

namespace batchllm {
namespace {

template <typename T> int64_t size_of(const T &container) {
    return static_cast<int64_t>(container.size());
}

template <typename T> void extend(std::vector<T> *to, const std::vector<T> &from) {
    to->insert(to->end(), from.begin(), from.end());
}

} // namespace

std::unique_ptr<ResultBatch> ResultBatch::take(std::deque<Outcome> *outcomes, int64_t max_results) {
    std::unique_ptr<ResultBatch> batch(new ResultBatch);
    size_t taken = 0;
    while (taken < outcomes->size()) {
        const Outcome &next = (*outcomes)[taken];
        const bool full = max_results > 0 && static_cast<int64_t>(taken) >= max_results;
        if (full && next.sample == 0) break;
        // A row with several samples is started only if there is room for all of them, unless it is
        // the first in the batch.
        if (next.sample == 0 && taken > 0 && max_results > 0) {
            size_t end = taken + 1;
            while (end < outcomes->size() && (*outcomes)[end].sample != 0) ++end;
            if (static_cast<int64_t>(end) > max_results) break;
        }
        batch->append(next);
        ++taken;
    }
    batch->publish();
    outcomes->erase(outcomes->begin(), outcomes->begin() + static_cast<std::ptrdiff_t>(taken));
    return batch;
}

void ResultBatch::LogprobColumns::append(const TokenLogprobs &logprobs) {
    extend(&values, logprobs.values);
    size_t next = 0;
    for (const int32_t likeliest : logprobs.top_counts) {
        for (int32_t i = 0; i < likeliest; ++i, ++next) {
            top_tokens.push_back(logprobs.top[next].token);
            top_logprobs.push_back(logprobs.top[next].logprob);
        }
        top_offsets.push_back(size_of(top_tokens));
    }
    offsets.push_back(size_of(values));
}

void ResultBatch::append(const Outcome &outcome) {
    auto &c = columns_;
    c.tags.push_back(outcome.tag);
    c.statuses.push_back(outcome.status);
    c.finish_reasons.push_back(outcome.finish);
    c.samples.push_back(outcome.sample);
    c.prompt_tokens.push_back(outcome.prompt_tokens);
    c.shared_tokens.push_back(outcome.shared_tokens);
    extend(&c.tokens, outcome.tokens);
    c.token_offsets.push_back(size_of(c.tokens));
    c.text += outcome.text;
    c.text_offsets.push_back(size_of(c.text));
    c.errors += outcome.error;
    c.error_offsets.push_back(size_of(c.errors));

    c.logprobs.append(outcome.logprobs);
    c.prompt_logprobs.append(outcome.prompt_logprobs);

    size_t next = 0;
    for (const int32_t length : outcome.score_lengths) {
        double sum = 0;
        for (int32_t i = 0; i < length; ++i) {
            const float logprob = outcome.score_logprobs[next++];
            sum += static_cast<double>(logprob);
            c.score_logprobs.push_back(logprob);
        }
        c.scores.push_back(sum);
        c.score_token_offsets.push_back(size_of(c.score_logprobs));
    }
    c.score_offsets.push_back(size_of(c.scores));
    extend(&c.embeddings, outcome.embedding);
    c.embedding_offsets.push_back(size_of(c.embeddings));
    extend(&c.label_logits, outcome.labels.logits);
    extend(&c.label_probabilities, outcome.labels.probabilities);
    c.label_offsets.push_back(size_of(c.label_logits));
}

void ResultBatch::publish() {
    const auto &c = columns_;
    struct_size = sizeof(batchllm_results);
    count = size_of(c.tags);
    tags = c.tags.data();
    statuses = c.statuses.data();
    finish_reasons = c.finish_reasons.data();
    samples = c.samples.data();
    prompt_tokens = c.prompt_tokens.data();
    shared_tokens = c.shared_tokens.data();
    token_offsets = c.token_offsets.data();
    tokens = c.tokens.data();
    text_offsets = c.text_offsets.data();
    text = c.text.data();
    error_offsets = c.error_offsets.data();
    errors = c.errors.data();
    logprob_offsets = c.logprobs.offsets.data();
    logprobs = c.logprobs.values.data();
    top_offsets = c.logprobs.top_offsets.data();
    top_tokens = c.logprobs.top_tokens.data();
    top_logprobs = c.logprobs.top_logprobs.data();
    prompt_logprob_offsets = c.prompt_logprobs.offsets.data();
    prompt_logprobs = c.prompt_logprobs.values.data();
    prompt_top_offsets = c.prompt_logprobs.top_offsets.data();
    prompt_top_tokens = c.prompt_logprobs.top_tokens.data();
    prompt_top_logprobs = c.prompt_logprobs.top_logprobs.data();
    score_offsets = c.score_offsets.data();
    scores = c.scores.data();
    score_token_offsets = c.score_token_offsets.data();
    score_logprobs = c.score_logprobs.data();
    embedding_offsets = c.embedding_offsets.data();
    embeddings = c.embeddings.data();
    label_offsets = c.label_offsets.data();
    label_logits = c.label_logits.data();
    label_probabilities = c.label_probabilities.data();
}

} // namespace batchllm
