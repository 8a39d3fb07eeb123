// Text -> the inside of a JSON string.
#pragma once

#include <string>
#include <string_view>

namespace batchllm {

// Appends. Bytes that are not UTF-8 stay as they are; the reader of the JSON will find them.
void append_json_escaped(std::string *out, std::string_view text);

} // namespace batchllm
