// One input line -> its JSON, or the error for its row.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/json_view.h"
#include "cli/row.h"

namespace batchllm::cli {

// An id as JSON: a string, or a number in its shortest form (as written if no type can hold it).
// False if the value has another type.
bool append_id(JsonView value, std::string *id);

// The values of these keys as JSON; empty if the line lacks the key or has null. An id that is
// neither a string nor a number becomes "null".
struct LineId {
    std::string id;
    std::string custom_id;
    bool batch = false; // OpenAI batch format: the line has "custom_id" or "body"
};

class LineParser {
  public:
    // The line's object, valid until the next call and as long as the text. *own_id is set if the
    // line cannot be read only because of malformed numbers. Throws std::bad_alloc.
    RowError parse(std::string_view text, JsonView *object, std::optional<LineId> *own_id);

  private:
    JsonParser parser_;
};

// Rejects duplicate keys of a line and in its values, except own keys': there is no way to tell
// which value is meant.
RowError check_keys_differ(const JsonMembers &members);

} // namespace batchllm::cli
