// Untrusted text: whether it is UTF-8, and how to show it in an error.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace batchllm {

bool is_utf8(std::string_view text);

// Truncated, with everything removed that could end a line or control a terminal.
std::string printable(std::string_view text, size_t limit = 80);

// The same in quotation marks.
std::string in_quotes(std::string_view text);

} // namespace batchllm
