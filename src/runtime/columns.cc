#include "runtime/columns.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "constraint/handle.h"

namespace batchllm {
namespace {

// What a row wants besides its parameters.
bool same_handles(const PreparedParams &a, const PreparedParams &b) {
    return a.constraint == b.constraint && a.salt == b.salt;
}

// Whether two rows may share one copy.
bool same_params(const PreparedParams &a, const PreparedParams &b) {
    const RowParameters &row = a;
    return row == b && same_handles(a, b) && a.adapter == b.adapter;
}

} // namespace

void PreparedParams::set_adapter(const batchllm_params &params) {
    if (params.adapter == nullptr) return;
    adapter = params.adapter->source;
    salt = adapter->salt();
}

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

// Completes the form of a vector from the model's files, in the parameters too: rows that say what
// the model says are equal to those that leave it to the model.
Status ParamsReader::read_form(PreparedParams *read) const {
    constexpr int32_t code = BATCHLLM_ERROR_ROW_INVALID_PARAMETER;
    EmbeddingForm form = model_.form;
    const bool relies = read->pooling == BATCHLLM_POOLING_MODEL || read->normalize == 0;
    if (relies && !model_.form_status.ok()) {
        return Status(code,
                      model_.form_status.message() +
                          " (a row that sets pooling and normalize does without these files)");
    }
    if (read->pooling == BATCHLLM_POOLING_LAST) form.pooling = Pooling::last;
    if (read->pooling == BATCHLLM_POOLING_MEAN) form.pooling = Pooling::mean;
    if (read->pooling == BATCHLLM_POOLING_FIRST) form.pooling = Pooling::first;
    if (read->normalize != 0) form.normalize = read->normalize > 0;
    if (read->dimensions > model_.hidden) {
        return error(code, "dimensions is %d: the model's vectors have %d", read->dimensions,
                     model_.hidden);
    }
    // Requesting all dimensions is the same as requesting none.
    form.dimensions = read->dimensions == model_.hidden ? 0 : read->dimensions;
    read->form = form;
    read->pooling = form.pooling == Pooling::last   ? BATCHLLM_POOLING_LAST
                    : form.pooling == Pooling::mean ? BATCHLLM_POOLING_MEAN
                                                    : BATCHLLM_POOLING_FIRST;
    read->normalize = form.normalize ? 1 : -1;
    read->dimensions = form.dimensions;
    return {};
}

// Turns min_tokens and bad_words into this model's tokens.
Status ParamsReader::read_forbidden(SamplingParams *read) const {
    constexpr int32_t code = BATCHLLM_ERROR_ROW_INVALID_PARAMETER;
    if (read->min_tokens > 0) {
        read->ending_tokens = read->stop_tokens;
        if (!read->ignore_eos || read->constraint != nullptr) { // which lets them end a row
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
    ASSIGN_OR_RETURN(static_cast<RowParameters &>(*read),
                     read_parameters(params, model_.vocabulary));
    read->set_adapter(params);
    if (read->task == Task::generate) {
        if (!model_.text) {
            return error(code,
                         "task is 0 (generate), but the model has no lm_head: rows can be "
                         "embedded%s",
                         model_.labels ? " or classified" : "");
        }
        if (params.constraint != nullptr) read->constraint = params.constraint->constraint;
        return read_forbidden(read);
    }
    if (params.constraint != nullptr) {
        return error(code, "constraint: only generated text has one, and not what is embedded or "
                           "classified");
    }
    read->max_tokens = 0;
    if (read->task == Task::embed) return read_form(read);
    if (!model_.labels) {
        return error(code, "task is 2 (classify), but the model has no classification head");
    }
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
    return same_greedy_answer(a, b) && same_handles(a, b);
}

} // namespace batchllm
