// Text from a file -> the same as an error may show it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace batchllm {

// Cut short, and with nothing in it that could end a line or drive a terminal.
std::string printable(std::string_view text, size_t limit = 80);

// The same between quotation marks.
std::string in_quotes(std::string_view text);

} // namespace batchllm
