// The filters (value | name) and tests (value is name) that templates may use, by number.
#pragma once

#include <cstdint>
#include <string_view>

#include "text/jinja/evaluator.h"

namespace batchllm::jinja {

// -1: there is no such filter or test, or it is not supported. A template may name one where its rendering never
// comes, so this is an error only when it is applied.
int32_t find_filter(std::string_view name);
int32_t find_test(std::string_view name);
// That error: whether jinja2 has it, or nobody.
Status no_filter(std::string_view name);
Status no_test(std::string_view name);

Result<Value> apply_filter(Evaluator *evaluator, int32_t filter, const Value &value,
                           const CallArguments &arguments);
Result<bool> apply_test(Evaluator *evaluator, int32_t test, const Value &value,
                        const CallArguments &arguments);

} // namespace batchllm::jinja
