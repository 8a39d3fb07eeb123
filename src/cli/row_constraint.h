// The keys of a row that restrict its output -> one constraint.
#pragma once

#include <optional>
#include <string_view>

#include "base/json_view.h"
#include "cli/constraint_cache.h"
#include "cli/row.h"

namespace batchllm::cli {

// Each sets its part of *to and leaves the rest unchanged. value is not null.
RowError read_choices(JsonView value, ConstraintText *to);
RowError read_regex(JsonView value, ConstraintText *to);
RowError read_json_schema(JsonView value, ConstraintText *to);
RowError read_grammar(JsonView value, ConstraintText *to);
// OpenAI's: {"type": "text" | "json_object" | "json_schema"}. *strict_given: its "strict", if given.
RowError read_response_format(JsonView value, ConstraintText *to,
                              std::optional<bool> *strict_given);

} // namespace batchllm::cli
