// The methods of Python's str.
#pragma once

#include <string_view>

#include "text/jinja/evaluator.h"

namespace batchllm::jinja {

// name: one of those that has_method (methods.h) knows for text.
Result<Value> call_string(Evaluator *evaluator, const Value &self, std::string_view name,
                          const CallArguments &arguments);

} // namespace batchllm::jinja
