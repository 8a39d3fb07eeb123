// Rows that set one parameter, for tests of what holds for each.
#pragma once

#include "parameters/row_parameters.h"

namespace batchllm {

inline int32_t another_value(kinds::Whole, int32_t value) { return value + 1; }
inline float another_value(kinds::Number, float value) { return value == 0.5F ? 0.25F : 0.5F; }
inline bool another_value(kinds::Flag, bool value) { return !value; }
inline int32_t another_value(kinds::Choice, int32_t) { return 1; }
inline uint64_t another_value(kinds::Seed, uint64_t value) { return value + 1; }
inline int32_t another_value(kinds::Likeliest, int32_t value) { return value + 3; }
inline Task another_value(kinds::TaskName, Task) { return Task::embed; }
inline int32_t another_value(kinds::PoolingName, int32_t) { return BATCHLLM_POOLING_MEAN; }
inline std::vector<int32_t> another_value(kinds::Tokens, const std::vector<int32_t> &) {
    return {7};
}
inline std::vector<std::string> another_value(kinds::Texts, const std::vector<std::string> &) {
    return {"b"};
}
inline std::vector<std::pair<int32_t, float>>
another_value(kinds::Biases, const std::vector<std::pair<int32_t, float>> &) {
    return {{7, 1.0F}};
}

// A row on which the parameter has an effect.
inline RowParameters row_with(const ParameterFacts &facts) {
    RowParameters row;
    if (facts.rows == RowsWith::embedded) row.task = Task::embed;
    return row;
}

template <typename P> RowParameters with_another_value(const P &parameter) {
    RowParameters row = row_with(parameter);
    row.*parameter.field = another_value(typename P::Kind(), row.*parameter.field);
    return row;
}

} // namespace batchllm
