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
bool has_logprobs(const batchllm_results &results, int64_t i);
bool has_top(const batchllm_results &results, int64_t i); // any token has likeliest ones listed

// [offsets[i], offsets[i + 1]) of the values.
template <typename T> std::span<const T> slice(const T *values, const int64_t *offsets, int64_t i) {
    return {values + offsets[i], static_cast<size_t>(offsets[i + 1] - offsets[i])};
}

} // namespace batchllm::cli
