#include "runtime/columns.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>

namespace batchllm {
namespace {

// Compares every field, so that two rows may share one copy.
bool same_params(const PreparedParams &a, const PreparedParams &b) {
    return same_greedy_result(a, b) && a.temperature == b.temperature && a.top_p == b.top_p &&
           a.min_p == b.min_p && a.top_k == b.top_k && a.samples == b.samples && a.seed == b.seed &&
           a.parse_special == b.parse_special && a.add_special == b.add_special;
}

} // namespace

Status check_column(const char *items_name, const void *items, const char *offsets_name,
                    const int64_t *offsets, int64_t n) {
    if (n < 0) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "n is %" PRId64 ": it cannot be negative", n);
    }
    if (n == 0 && offsets == nullptr) return {};
    if (offsets == nullptr) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "%s is NULL for %" PRId64 " items",
                     offsets_name, n);
    }
    if (offsets[0] < 0) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "%s[0] is %" PRId64 ": it cannot be negative",
                     offsets_name, offsets[0]);
    }
    for (int64_t i = 0; i < n; ++i) {
        if (offsets[i + 1] >= offsets[i]) continue;
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "%s[%" PRId64 "] is %" PRId64 ", below the %" PRId64 " before it",
                     offsets_name, i + 1, offsets[i + 1], offsets[i]);
    }
    if (items == nullptr && offsets[n] > offsets[0]) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "%s is NULL, but %s ends at %" PRId64,
                     items_name, offsets_name, offsets[n]);
    }
    return {};
}

bool possible_struct_size(uint32_t size) {
    constexpr uint32_t alignment = alignof(int64_t);
    constexpr uint32_t most = 4096; // far above the future size of any struct
    return size >= alignment && size <= most && size % alignment == 0;
}

Status copy_known(const char *name, const void *from, void *to, size_t size) {
    uint32_t theirs;
    std::memcpy(&theirs, from, sizeof theirs);
    if (!possible_struct_size(theirs)) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "%s->struct_size is %" PRIu32 ": set it with the _init function", name,
                     theirs);
    }
    const auto *bytes = static_cast<const unsigned char *>(from);
    for (size_t i = size; i < theirs; ++i) {
        if (bytes[i] == 0) continue;
        return error(BATCHLLM_ERROR_UNSUPPORTED,
                     "%s has a field set at byte %zu, which this version of the library does not "
                     "know",
                     name, i);
    }
    std::memcpy(to, from, std::min<size_t>(theirs, size));
    const uint32_t ours = static_cast<uint32_t>(size);
    std::memcpy(to, &ours, sizeof ours);
    return {};
}

batchllm_params default_params() {
    batchllm_params params{};
    params.struct_size = sizeof params;
    params.max_tokens = 128;
    params.top_p = 1;
    params.repetition_penalty = 1;
    params.samples = 1;
    params.logprobs = -1;
    params.prompt_logprobs = -1;
    params.parse_special = 1;
    params.add_special = 1;
    return params;
}

Result<ParamsColumn> ParamsColumn::open(const batchllm_params *params, int64_t count,
                                        int64_t rows) {
    ParamsColumn column;
    if (params == nullptr) return column;
    if (count != 1 && count != rows) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "params_count is %" PRId64 ": it must be 1 or the %" PRId64 " rows", count,
                     rows);
    }
    column.first_ = reinterpret_cast<const std::byte *>(params);
    column.count_ = count;
    if (count == 0) return column;
    std::memcpy(&column.stride_, column.first_, sizeof column.stride_);
    RETURN_IF_ERROR(column.at(0).status()); // checked before the stride is trusted
    for (int64_t i = 0; i < count; ++i) {
        uint32_t size;
        std::memcpy(&size, column.first_ + i * int64_t{column.stride_}, sizeof size);
        if (size == column.stride_) continue;
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "params[%" PRId64 "].struct_size is %" PRIu32 ", but params[0]'s is %" PRIu32,
                     i, size, column.stride_);
    }
    for (int64_t i = 0; i < count; ++i) RETURN_IF_ERROR(column.at(i).status());
    return column;
}

Result<batchllm_params> ParamsColumn::at(int64_t i) const {
    batchllm_params params = default_params();
    if (first_ == nullptr) return params;
    const int64_t index = count_ == 1 ? 0 : i;
    RETURN_IF_ERROR(
        copy_known("params", first_ + index * int64_t{stride_}, &params, sizeof params));
    return params;
}

Result<EmbeddingForm> ParamsReader::read_form(const batchllm_params &params) const {
    constexpr int32_t code = BATCHLLM_ERROR_ROW_INVALID_PARAMETER;
    EmbeddingForm form = model_.form;
    switch (params.pooling) {
    case BATCHLLM_POOLING_MODEL:
        if (!model_.form_status.ok()) return Status(code, model_.form_status.message());
        break;
    case BATCHLLM_POOLING_LAST:
        form.pooling = Pooling::last;
        break;
    case BATCHLLM_POOLING_MEAN:
        form.pooling = Pooling::mean;
        break;
    case BATCHLLM_POOLING_FIRST:
        form.pooling = Pooling::first;
        break;
    default:
        return error(code, "pooling is %d: it must be 0 to 3", params.pooling);
    }
    if (params.normalize < -1 || params.normalize > 1) {
        return error(code, "normalize is %d: it must be -1, 0 or 1", params.normalize);
    }
    if (params.normalize != 0) form.normalize = params.normalize > 0;
    if (params.dimensions < 0 || params.dimensions > model_.hidden) {
        return error(code, "dimensions is %d: the model's vectors have %d", params.dimensions,
                     model_.hidden);
    }
    // Requesting all dimensions is the same as requesting none, so such rows count as equal.
    form.dimensions = params.dimensions == model_.hidden ? 0 : params.dimensions;
    return form;
}

// Turns min_tokens and bad_words into this model's tokens.
Status ParamsReader::read_forbidden(SamplingParams *read) const {
    constexpr int32_t code = BATCHLLM_ERROR_ROW_INVALID_PARAMETER;
    if (read->min_tokens > 0) {
        read->ending_tokens = read->stop_tokens;
        if (!read->ignore_eos) {
            read->ending_tokens.insert(read->ending_tokens.end(), model_.eos_tokens.begin(),
                                       model_.eos_tokens.end());
        }
    }
    if (read->bad_words.empty()) return {};
    for (const auto &before : recent_) {
        if (before->bad_words != read->bad_words) continue;
        read->bad_sequences = before->bad_sequences;
        return {};
    }
    if (model_.tokenizer == nullptr) {
        return error(code, "bad_words need a tokenizer, and the engine has none");
    }
    for (size_t i = 0; i < read->bad_words.size(); ++i) {
        std::string_view word = read->bad_words[i];
        const size_t text = word.find_first_not_of(' ');
        if (text != std::string_view::npos) word.remove_prefix(text);
        for (const char *space : {"", " "}) {
            std::vector<int32_t> tokens;
            Status status =
                model_.tokenizer->encode(space + std::string(word), {false, false}, &tokens);
            if (status.code() == BATCHLLM_ERROR_OUT_OF_MEMORY) return status;
            if (!status.ok() || tokens.empty()) {
                return error(code, "bad_words[%zu] is no text of this model's: %s", i,
                             status.ok() ? "it has no tokens" : status.message().c_str());
            }
            auto &all = read->bad_sequences;
            if (std::find(all.begin(), all.end(), tokens) == all.end()) {
                all.push_back(std::move(tokens));
            }
        }
    }
    return {};
}

Status ParamsReader::read_task(const batchllm_params &params, PreparedParams *read) const {
    constexpr int32_t code = BATCHLLM_ERROR_ROW_INVALID_PARAMETER;
    if (params.task == BATCHLLM_TASK_GENERATE) {
        if (!model_.text) {
            return error(code,
                         "task is 0 (generate), but the model has no lm_head: rows can be "
                         "embedded%s",
                         model_.labels ? " or classified" : "");
        }
        ASSIGN_OR_RETURN(static_cast<SamplingParams &>(*read),
                         read_params(params, model_.vocabulary));
        return read_forbidden(read);
    }
    if (params.constraint != nullptr) {
        return error(code, "constraint: only generated text has one, and not what is embedded or "
                           "classified");
    }
    read->max_tokens = 0;
    read->parse_special = params.parse_special != 0;
    read->add_special = params.add_special != 0;
    if (params.task == BATCHLLM_TASK_EMBED) {
        read->task = Task::embed;
        ASSIGN_OR_RETURN(read->form, read_form(params));
        return {};
    }
    if (params.task != BATCHLLM_TASK_CLASSIFY) {
        return error(code, "task is %d: it must be 0 to 2", params.task);
    }
    if (!model_.labels) {
        return error(code, "task is 2 (classify), but the model has no classification head");
    }
    if (params.pooling != 0 || params.normalize != 0 || params.dimensions != 0) {
        return error(code, "pooling, normalize and dimensions are for embedded rows");
    }
    read->task = Task::classify;
    return {};
}

Result<std::shared_ptr<const PreparedParams>> ParamsReader::read(const batchllm_params &params) {
    PreparedParams fresh;
    RETURN_IF_ERROR(read_task(params, &fresh));
    for (size_t i = recent_.size(); i-- > 0;) {
        if (!same_params(*recent_[i], fresh)) continue;
        std::rotate(recent_.begin() + static_cast<std::ptrdiff_t>(i),
                    recent_.begin() + static_cast<std::ptrdiff_t>(i) + 1, recent_.end());
        return recent_.back();
    }
    auto prepared = std::make_shared<PreparedParams>();
    *prepared = std::move(fresh);
    if (!prepared->stop_strings.empty()) {
        prepared->stops = std::make_unique<const StopStrings>(prepared->stop_strings);
    }
    std::shared_ptr<const PreparedParams> shared = std::move(prepared);
    if (recent_.size() == remembered) recent_.erase(recent_.begin());
    recent_.push_back(shared);
    return shared;
}

bool same_greedy_result(const PreparedParams &a, const PreparedParams &b) {
    return a.salt == b.salt && a.task == b.task && a.form == b.form &&
           a.max_tokens == b.max_tokens && a.repetition_penalty == b.repetition_penalty &&
           a.presence_penalty == b.presence_penalty && a.frequency_penalty == b.frequency_penalty &&
           a.ignore_eos == b.ignore_eos && a.logprobs == b.logprobs &&
           a.stop_tokens == b.stop_tokens && a.stop_strings == b.stop_strings && a.bias == b.bias &&
           a.min_tokens == b.min_tokens && a.bad_words == b.bad_words &&
           a.prompt_logprobs == b.prompt_logprobs && a.constraint == b.constraint;
}

} // namespace batchllm
