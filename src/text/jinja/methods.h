// The methods of Python's types that templates may call.
#pragma once

#include <string_view>

#include "text/jinja/evaluator.h"

namespace batchllm::jinja {

// Whether values of this type have the method and it is supported.
bool has_method(const Value &value, std::string_view name);
// Whether Python has the attribute for values of this type and this library does not.
bool lacks_attribute(const Value &value, std::string_view name);

Result<Value> call_method(Evaluator *evaluator, const Value &self, std::string_view name,
                          const CallArguments &arguments);

} // namespace batchllm::jinja
