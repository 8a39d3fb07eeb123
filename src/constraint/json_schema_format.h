// `format` -> the language of the strings that have it.
#pragma once

#include <optional>
#include <string_view>

#include "constraint/automaton.h"

namespace batchllm {

enum class FormatKind : uint8_t {
    unknown,   // an annotation, whatever it says
    language,  // exactly decided
    undecided, // known, and beyond what an automaton can tell
};

FormatKind format_kind(std::string_view name);

// Of a format of kind `language`.
Result<Automaton> format_language(std::string_view name, Budget *budget);

} // namespace batchllm
