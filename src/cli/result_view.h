// Result i of a column batch, field by field.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "batchllm.h"
#include "cli/row.h"

namespace batchllm::cli {

std::string_view text_of(const batchllm_results &results, int64_t i);
int64_t completion_tokens(const batchllm_results &results, int64_t i);
RowError error_of(const batchllm_results &results, int64_t i);
// Of the results [first, first + count), a row's samples: the first one that failed, and the row with it. -1: none.
int64_t first_failed(const batchllm_results &results, int64_t first, int64_t count);

// Log-probabilities of tokens, either the generated ones or the prompt's.
struct LogprobView {
    const int64_t *offsets;
    const float *values;
    const int64_t *top_offsets;
    const int32_t *top_tokens;
    const float *top_logprobs;

    bool any(int64_t i) const { return offsets[i + 1] > offsets[i]; }
    // Whether the most likely tokens are listed for any token.
    bool any_top(int64_t i) const { return top_offsets[offsets[i + 1]] > top_offsets[offsets[i]]; }
};
LogprobView logprobs_of(const batchllm_results &results);
LogprobView prompt_logprobs_of(const batchllm_results &results);

// [offsets[i], offsets[i + 1]) of the values.
template <typename T> std::span<const T> slice(const T *values, const int64_t *offsets, int64_t i) {
    return {values + offsets[i], static_cast<size_t>(offsets[i + 1] - offsets[i])};
}

} // namespace batchllm::cli
