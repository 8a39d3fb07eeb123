// One input line -> its JSON, or the error that its row gets.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/json_view.h"
#include "cli/row.h"

namespace batchllm::cli {

// An id as JSON: a string, or a number as it is best written. False for a value of another type.
bool append_id(JsonView value, std::string *id);

// The values of these keys as JSON; empty: the line has none, or null. An id that is neither a string nor a
// number is "null"; a number that no type can hold comes back as it was written.
struct LineId {
    std::string id;
    std::string custom_id;
    bool batch = false; // of the OpenAI batch form: it has "custom_id" or "body"
};

class LineParser {
  public:
    // The line's object, valid until the next call. 64 bytes behind the text must be readable. *own_id is set
    // for a line with a number that no type can hold, if the rest can be read. That is an error, unless only an
    // id is such a number: the object then has a string of it. Throws std::bad_alloc.
    RowError parse(std::string_view text, JsonView *object, std::optional<LineId> *own_id);

  private:
    JsonParser parser_;
};

// A key given twice has no right answer: neither value is taken.
RowError check_keys_differ(JsonView object);

} // namespace batchllm::cli
