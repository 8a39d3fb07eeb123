// The functions of a template's environment: range, namespace, dict, raise_exception, strftime_now.
#pragma once

#include <string_view>

#include "text/jinja/evaluator.h"

namespace batchllm::jinja {

bool has_function(std::string_view name);
Result<Value> call_function(Evaluator *evaluator, std::string_view name,
                            const CallArguments &arguments);

} // namespace batchllm::jinja
