#include "cli/line_json.h"

#include <new>

#include "base/printable.h"
#include "cli/json_text.h"
#include "cli/row_keys.h"
#include "cli/row_parameters.h"

namespace batchllm::cli {
namespace {

// A parser keeps its memory for the longest line so far.
constexpr size_t long_line = size_t{8} << 20;

std::string id_of(JsonView value) {
    std::string id;
    if (!value.is_null() && !append_id(value, &id)) id = "null";
    return id;
}

// Of a line whose only faults are numbers.
LineId read_id(JsonView object) {
    LineId id;
    if (const auto own = object.find("id")) id.id = id_of(*own);
    if (const auto custom = object.find("custom_id")) id.custom_id = id_of(*custom);
    id.batch = object.find("custom_id") || object.find("body");
    return id;
}

} // namespace

bool append_id(JsonView value, std::string *id) {
    if (const auto text = value.string()) {
        append_json(id, *text);
    } else if (const auto integer = value.integer()) {
        append_json(id, *integer);
    } else if (const auto large = value.unsigned_integer()) {
        append_json(id, *large);
    } else if (const auto number = value.number(); number && !value.is_integer()) {
        append_json(id, *number);
    } else if (const auto as_written = value.number_text()) {
        *id += *as_written;
    } else {
        return false;
    }
    return true;
}

RowError LineParser::parse(std::string_view text, JsonView *object, std::optional<LineId> *own_id) {
    if (text.size() > long_line) parser_ = JsonParser();
    const JsonFault fault = parser_.parse(text, object);
    switch (fault.kind) {
    case JsonFault::Kind::none:
        return object->is_object() ? RowError() : format_error("the line is not an object");
    case JsonFault::Kind::memory:
        throw std::bad_alloc(); // the row is not to blame: --resume reads it again
    case JsonFault::Kind::utf8:
        return {row_error_code(BATCHLLM_ERROR_ROW_INVALID_UTF8), "the line is not valid UTF-8"};
    case JsonFault::Kind::number:
        if (object->is_object()) *own_id = read_id(*object);
        break;
    case JsonFault::Kind::grammar:
        break;
    }
    return {"ROW_JSON", "the line is not JSON: " + fault.text};
}

RowError check_keys_differ(const JsonMembers &members) {
    const auto twice = [](const std::string &path) {
        return format_error("the key \"" + path + "\" is given twice");
    };
    if (const auto key = members.equal_keys()) return twice(printable(*key));
    for (const auto [key, value] : members) {
        if (is_own_key(key)) continue;
        const std::optional<std::string> path = find_equal_keys(value);
        if (path.has_value()) {
            return twice(printable(key) + (path->front() == '[' ? "" : ".") + *path);
        }
    }
    return {};
}

} // namespace batchllm::cli
