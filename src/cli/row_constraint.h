// The keys of a row that say what its output must look like -> one constraint.
#pragma once

#include <string_view>

#include <simdjson.h>

#include "cli/constraint_cache.h"
#include "cli/row.h"

namespace batchllm::cli {

// Into *to, what is in it aside. value is not null.
RowError read_choices(simdjson::dom::element value, ConstraintText *to);
RowError read_regex(simdjson::dom::element value, ConstraintText *to);
RowError read_json_schema(simdjson::dom::element value, ConstraintText *to);
RowError read_grammar(simdjson::dom::element value, ConstraintText *to);
// OpenAI's: {"type": "text" | "json_object" | "json_schema"}.
RowError read_response_format(simdjson::dom::element value, ConstraintText *to);

} // namespace batchllm::cli
