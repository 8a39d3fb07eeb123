// The functions of the filters, for the table in filters.cc, and their shared helpers.
#pragma once

#include <string_view>

#include "text/jinja/evaluator.h"

namespace batchllm::jinja::filters {

using Filter = Result<Value>(Evaluator *evaluator, const Value &value,
                             const CallArguments &arguments);

// filter_text.cc
Filter capitalized, center, escape, force_escape, from_json, indent, join, lower, replace_text,
    safe, string, title, tojson, trim, truncate, upper;
// filter_numbers.cc
Filter absolute, rounded, sum, to_float, to_int;
// filter_lists.cc
Filter attribute_of, dictsort, first, last, least, length_of, list, most, reverse, sort;
// filter_generators.cc: filters that return a generator
Filter batch, items_of, map, reject, rejectattr, select, selectattr, slices, unique;

// An attribute given by path, "function.name" or "0" or 1, as in the argument `attribute` of
// filters.
Result<Value> attribute_path(Evaluator *evaluator, Value value, const Value &path);
Status no_arguments(std::string_view filter, const CallArguments &arguments);
// The sort key of a value: text is lowered unless case matters.
Result<Value> sort_key(Evaluator *evaluator, const Value &value, bool case_sensitive);

} // namespace batchllm::jinja::filters
