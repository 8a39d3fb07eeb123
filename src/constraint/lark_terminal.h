// The forms of a terminal in a Lark grammar -> its automaton: a character range, a case-insensitive
// string, a name from Lark's library `common`.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "constraint/automaton.h"

namespace batchllm {

// Whether the name is a TERMINAL (upper case) or a rule (lower case), ignoring leading underscores.
bool is_lark_terminal(std::string_view name);

// The regular expression for `%import common.NAME`; null if `common` has no such name.
const char *lark_common_terminal(std::string_view name);

// "a".."z". Empty optional unless both are one character and the first is not above the last.
std::optional<Automaton> characters_between(const std::string &first, const std::string &last);

// "text"i. Only ASCII letters are matched in both cases.
Result<Automaton> ignoring_case(const std::string &text, Budget *budget);

} // namespace batchllm
