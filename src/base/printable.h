// Text from outside: whether it is UTF-8, and how an error may show it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace batchllm {

bool is_utf8(std::string_view text);

// Cut short, and with nothing in it that could end a line or drive a terminal.
std::string printable(std::string_view text, size_t limit = 80);

// The same between quotation marks.
std::string in_quotes(std::string_view text);

} // namespace batchllm
