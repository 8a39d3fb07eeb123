// Numbers and strings in template text, in Python's syntax.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "text/jinja/lexer.h"

namespace batchllm::jinja {

inline bool is_digit(char c) { return c >= '0' && c <= '9'; }

// The number that begins with the digit at text[at]; the token's text is its spelling.
Result<Token> number_at(std::string_view text, size_t at, int32_t line);

// The text between a string's quotation marks, with Python's escapes resolved. Unknown escapes are
// left unchanged.
Result<std::string> unescape(std::string_view raw, int32_t line);

} // namespace batchllm::jinja
