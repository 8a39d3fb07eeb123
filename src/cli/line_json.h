// The id of a line that is well-formed but holds a number that no 64-bit type and no double can
// hold, so that simdjson's document cannot be made of it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace batchllm::cli {

// The values of these keys as JSON; empty: the line has none, or null.
struct LineId {
    std::string id;
    std::string custom_id;
    bool batch = false; // of the OpenAI batch form: it has "custom_id" or "body"
};

// Walks over the line's keys without reading other values. Nothing when the line's structure is
// broken. An id that is no string and no number is null; one that is itself an integer beyond 64
// bits comes back digit by digit. Copies the line: only for lines that failed.
std::optional<LineId> find_line_id(std::string_view text);

} // namespace batchllm::cli
