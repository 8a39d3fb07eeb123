// One input line -> its JSON, or the error that its row gets.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/json_view.h"
#include "cli/row.h"

namespace batchllm::cli {

// An id as JSON: a string, or a number in its shortest form. False for a value of another type.
bool append_id(JsonView value, std::string *id);

// The values of these keys as JSON; empty if the line has none, or null. An id that is neither a string nor a
// number is "null"; a number that no type can hold is kept as it was written.
struct LineId {
    std::string id;
    std::string custom_id;
    bool batch = false; // in the OpenAI batch format: it has "custom_id" or "body"
};

class LineParser {
  public:
    // The line's object, valid until the next call. 64 bytes after the text must be readable. *own_id is set
    // if the line has a number that no type can hold and the rest can be read. Such a number is an error, except
    // as an id, which is then a string in the object. Throws std::bad_alloc.
    RowError parse(std::string_view text, JsonView *object, std::optional<LineId> *own_id);

  private:
    JsonParser parser_;
};

// Refuses a key that is given twice: neither value would be the right one.
RowError check_keys_differ(JsonView object);

} // namespace batchllm::cli
