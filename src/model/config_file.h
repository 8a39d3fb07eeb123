// The text of a config.json -> JSON.
#pragma once

#include <string>

#include "base/json.h"

namespace batchllm {

// Python writes an infinite number as Infinity, which is not JSON. It is read as transformers 5 writes it:
// {"__float__": "Infinity"}.
Result<JsonDocument> parse_config(const std::string &text, const std::string &file);
Result<JsonDocument> load_config(const std::string &path);

} // namespace batchllm
