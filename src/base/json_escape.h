// Escapes text for use inside a JSON string.
#pragma once

#include <string>
#include <string_view>

namespace batchllm {

// Appends. Bytes that are not UTF-8 are copied unchanged; the reader of the JSON will detect them.
void append_json_escaped(std::string *out, std::string_view text);

} // namespace batchllm
