// The forms of a terminal in a Lark grammar -> its automaton: a character range, a string in any
// case, a name from Lark's own library `common`.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "constraint/automaton.h"

namespace batchllm {

// Whether it is a TERMINAL (in upper case) or a rule (in lower case), whatever the leading underscores.
bool is_lark_terminal(std::string_view name);

// The regular expression of `%import common.NAME`, null if `common` has no such name.
const char *lark_common_terminal(std::string_view name);

// "a".."z". Nothing unless both are one character and the first is not above the last.
std::optional<Automaton> characters_between(const std::string &first, const std::string &last);

// "text"i. Only ASCII letters have two cases.
Result<Automaton> ignoring_case(const std::string &text, Budget *budget);

} // namespace batchllm
