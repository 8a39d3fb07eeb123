// The names that rows use for their parameters, and suggestions for misspelt ones.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "batchllm.h"
#include "parameters/row_parameters.h"

namespace batchllm::cli {

// The keys that say what the output must look like; the others are those of row_parameters.inc.
enum class ConstraintKey : uint8_t {
    choices,
    regex,
    json_schema,
    grammar,
    response_format,
    start_after,
    flexible_whitespace,
    any_member_order,
    any_numbers,
    loose_schema,
};

// Names for the numeric values of a parameter.
struct ParameterName {
    const char *name;
    int32_t value;
};
inline constexpr ParameterName task_names[] = {{"generate", BATCHLLM_TASK_GENERATE},
                                               {"embed", BATCHLLM_TASK_EMBED},
                                               {"classify", BATCHLLM_TASK_CLASSIFY}};
inline constexpr ParameterName pooling_names[] = {{"last", BATCHLLM_POOLING_LAST},
                                                  {"mean", BATCHLLM_POOLING_MEAN},
                                                  {"first", BATCHLLM_POOLING_FIRST}};
inline std::span<const ParameterName> names_of(kinds::TaskName) { return task_names; }
inline std::span<const ParameterName> names_of(kinds::PoolingName) { return pooling_names; }

// The key of the parameter that a row may also call by this name.
std::string_view usual_key(std::string_view key);
std::optional<ConstraintKey> find_constraint_key(std::string_view key);

// "metadata", and keys that begin with "_": they belong to the caller and are never read.
bool is_own_key(std::string_view key);

// Keys of an OpenAI request body that do not change the answer.
bool is_harmless_body_key(std::string_view key);

// The known key that this one misspells or is a synonym of; empty: none is close.
std::string_view nearest_row_key(std::string_view key);

// Levenshtein distance.
size_t edit_distance(std::string_view a, std::string_view b);

// Parses a whole string of digits as a token id.
std::optional<int32_t> parse_token_id(std::string_view text);

} // namespace batchllm::cli
