#include "runtime/row_checks.h"

#include <cinttypes>

#include "runtime/row_run.h"

namespace batchllm {

Status RowChecks::check_tokens(const char *what, std::span<const int32_t> tokens) const {
    for (size_t i = 0; i < tokens.size(); ++i) {
        if (tokens[i] >= 0 && tokens[i] < vocabulary_) continue;
        return error(BATCHLLM_ERROR_ROW_UNKNOWN_TOKEN,
                     "%s token %zu is %d, outside the vocabulary of %d", what, i, tokens[i],
                     vocabulary_);
    }
    return {};
}

// generated: how many tokens after the prompt are stored or sampled.
Status RowChecks::check_prompt(std::span<const int32_t> prompt, int64_t generated) const {
    if (prompt.empty()) return error(BATCHLLM_ERROR_ROW_EMPTY, "the prompt has no tokens");
    const int64_t length = static_cast<int64_t>(prompt.size());
    if (length + generated > max_request_tokens_) {
        return error(BATCHLLM_ERROR_ROW_TOO_LONG,
                     "%" PRId64 " prompt tokens and %" PRId64
                     " more exceed the longest request, %" PRId64,
                     length, generated, max_request_tokens_);
    }
    return check_tokens("prompt", prompt);
}

// The last token of a request is not stored, unless all_stored.
Status RowChecks::check_pages(const char *what, int64_t tokens, bool all_stored) const {
    for (const DevicePages &device : devices_) {
        if (tokens + (all_stored ? 1 : 0) <= device.longest_request) continue;
        return error(BATCHLLM_ERROR_ROW_TOO_LARGE,
                     "%" PRId64 " tokens of prompt and %s do not fit the pool of %" PRId64
                     " KV pages of %d tokens",
                     tokens, what, device.pages, device.page_tokens);
    }
    return {};
}

Status RowChecks::check(std::span<const int32_t> prompt, const PreparedParams &params) const {
    const int64_t length = static_cast<int64_t>(prompt.size());
    if (embedded(params.task)) {
        RETURN_IF_ERROR(check_prompt(prompt, 0));
        const bool first = params.task == Task::embed && params.form.pooling == Pooling::first;
        return check_pages("nothing more", first ? 1 : length, true);
    }
    RETURN_IF_ERROR(check_prompt(prompt, 1));
    const int64_t tokens = length + clipped_max_tokens(params, length, max_request_tokens_);
    return check_pages("output", tokens, false);
}

Status RowChecks::check(std::span<const int32_t> prompt, const ScoreSpec &score) const {
    if (!scores_tokens_) {
        return error(BATCHLLM_ERROR_ROW_INVALID_PARAMETER,
                     "the model has no lm_head: it has no scores of tokens");
    }
    if (score.count() == 0) {
        return error(BATCHLLM_ERROR_ROW_EMPTY, "the row has no continuations to score");
    }
    for (int32_t c = 0; c < score.count(); ++c) {
        if (score.length(c) == 0) {
            return error(BATCHLLM_ERROR_ROW_EMPTY, "continuation %d has no tokens", c);
        }
        RETURN_IF_ERROR(check_tokens("continuation", score.continuation(c)));
    }
    RETURN_IF_ERROR(check_prompt(prompt, score.longest()));
    const int64_t tokens = static_cast<int64_t>(prompt.size()) + score.longest();
    return check_pages("continuation", tokens, false);
}

} // namespace batchllm
