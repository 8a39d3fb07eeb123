#include "runtime/row_checks.h"

#include <cinttypes>

#include "runtime/row_run.h"

namespace batchllm {

// pictures: those tokens from first_picture_id on are known.
Status RowChecks::check_tokens(const char *what, std::span<const int32_t> tokens,
                               bool pictures) const {
    for (size_t i = 0; i < tokens.size(); ++i) {
        if (tokens[i] >= 0 && tokens[i] < vocabulary_) continue;
        if (pictures && tokens[i] >= first_picture_id) continue;
        return error(BATCHLLM_ERROR_ROW_UNKNOWN_TOKEN,
                     "%s token %zu is %d, outside the vocabulary of %d", what, i, tokens[i],
                     vocabulary_);
    }
    return {};
}

// generated: how many tokens after the prompt are stored or sampled.
Status RowChecks::check_prompt(std::span<const int32_t> prompt, const RowPictures *pictures,
                               int64_t generated) const {
    if (prompt.empty()) return error(BATCHLLM_ERROR_ROW_EMPTY, "the prompt has no tokens");
    const int64_t length = static_cast<int64_t>(prompt.size());
    if (length > max_request_tokens_ - generated) { // lengths may be any
        return error(BATCHLLM_ERROR_ROW_TOO_LONG,
                     "%" PRId64 " prompt tokens and %" PRId64
                     " more exceed the longest request, %" PRId64,
                     length, generated, max_request_tokens_);
    }
    return check_tokens("prompt", prompt, pictures != nullptr);
}

// stored: tokens of the row whose keys and values are kept.
Status RowChecks::check_pictures(const RowPictures *pictures, int64_t prompt,
                                 int64_t stored) const {
    if (pictures == nullptr) return {};
    for (size_t i = 0; i < pictures->places.size(); ++i) {
        const RowPictures::Place &place = pictures->places[i];
        const int32_t tokens = place.source->grid.tokens;
        const int64_t patches = int64_t{place.source->grid.rows} * place.source->grid.columns;
        for (const DevicePages &device : devices_) {
            if (device.picture_patches > 0 && patches > device.picture_patches) {
                return error(BATCHLLM_ERROR_ROW_PICTURE,
                             "picture %zu has %" PRId64
                             " patches, and a device has memory for %" PRId64
                             ": make it smaller, or lower the largest size in the processor's file "
                             "(max_pixels or longest_edge)",
                             i + 1, patches, device.picture_patches);
            }
            if (tokens > device.picture_tokens) {
                return error(BATCHLLM_ERROR_ROW_PICTURE,
                             "picture %zu takes %d tokens, and a device has room for pictures of "
                             "%" PRId64,
                             i + 1, tokens, device.picture_tokens);
            }
            if (device.scheduler->has_room_for_picture(stored, place.length)) continue;
            return error(BATCHLLM_ERROR_ROW_PICTURE,
                         "picture %zu takes %d tokens, which this model needs in one step: raise "
                         "step_tokens or the memory for keys and values",
                         i + 1, place.length);
        }
        if (cut_by_end_ && place.begin + place.length == prompt) {
            return error(BATCHLLM_ERROR_ROW_PICTURE,
                         "the prompt ends with a picture: this model needs text after it");
        }
    }
    return {};
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

Status RowChecks::check(std::span<const int32_t> prompt, const RowPictures *pictures,
                        const PreparedParams &params) const {
    const int64_t length = static_cast<int64_t>(prompt.size());
    if (embedded(params.task)) {
        RETURN_IF_ERROR(check_prompt(prompt, pictures, 0));
        RETURN_IF_ERROR(check_pictures(pictures, length, length));
        const bool first = params.task == Task::embed && params.form.pooling == Pooling::first;
        return check_pages("nothing more", first ? 1 : length, true);
    }
    RETURN_IF_ERROR(check_prompt(prompt, pictures, 1));
    const int64_t tokens = length + clipped_max_tokens(params, length, max_request_tokens_);
    RETURN_IF_ERROR(check_pictures(pictures, length, tokens - 1));
    return check_pages("output", tokens, false);
}

Status RowChecks::check(std::span<const int32_t> prompt, const RowPictures *pictures,
                        const ScoreSpec &score) const {
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
        RETURN_IF_ERROR(check_tokens("continuation", score.continuation(c), false));
    }
    RETURN_IF_ERROR(check_prompt(prompt, pictures, score.longest()));
    const int64_t tokens = static_cast<int64_t>(prompt.size()) + score.longest();
    RETURN_IF_ERROR(check_pictures(pictures, static_cast<int64_t>(prompt.size()), tokens - 1));
    return check_pages("continuation", tokens, false);
}

} // namespace batchllm
