#include "cli/line_json.h"

#include <new>

#include "base/json_tree.h"
#include "cli/json_text.h"
#include "cli/row_parameters.h"

namespace batchllm::cli {
namespace {

// A parser keeps memory for the longest line it has met.
constexpr size_t long_line = size_t{8} << 20;

// -?(0|[1-9][0-9]*): what may be given back as it stands.
bool is_integer(std::string_view text) {
    if (!text.empty() && text.front() == '-') text.remove_prefix(1);
    if (text.empty() || (text.front() == '0' && text.size() > 1)) return false;
    return text.find_first_not_of("0123456789") == std::string_view::npos;
}

std::string id_of(const JsonTree &value) {
    std::string id;
    switch (value.kind) {
    case JsonTree::Kind::null:
        return id;
    case JsonTree::Kind::string:
        append_json(&id, std::string_view(value.text));
        return id;
    case JsonTree::Kind::number: {
        JsonParser parser;
        JsonView number;
        if (parser.parse(value.text, false, &number).kind == JsonFault::Kind::none) {
            append_id(number, &id);
        } else if (is_integer(value.text)) {
            id = value.text;
        }
        return id.empty() ? "null" : id;
    }
    default:
        return "null";
    }
}

// Of a line with a number that no type can hold: its tree has numbers as they were written.
std::optional<LineId> find_line_id(std::string_view text) {
    const Result<JsonTree> tree =
        parse_json_tree(text, "line", text.size(), JsonNumbers::malformed_too);
    if (!tree.ok()) {
        if (tree.status().code() == BATCHLLM_ERROR_OUT_OF_MEMORY) throw std::bad_alloc();
        return std::nullopt;
    }
    LineId line;
    if (const JsonTree *id = tree->find("id")) line.id = id_of(*id);
    const JsonTree *const custom_id = tree->find("custom_id");
    if (custom_id != nullptr) line.custom_id = id_of(*custom_id);
    line.batch = custom_id != nullptr || tree->find("body") != nullptr;
    return line;
}

} // namespace

bool append_id(JsonView value, std::string *id) {
    if (const auto text = value.string()) {
        append_json(id, *text);
    } else if (const auto integer = value.integer()) {
        append_json(id, *integer);
    } else if (const auto large = value.unsigned_integer()) {
        append_json(id, *large);
    } else if (const auto number = value.number()) {
        append_json(id, *number);
    } else {
        return false;
    }
    return true;
}

RowError LineParser::parse(std::string_view text, JsonView *object,
                           std::optional<LineId> *of_failed) {
    if (text.size() > long_line) parser_ = JsonParser();
    const JsonFault fault = parser_.parse(text, true, object);
    switch (fault.kind) {
    case JsonFault::Kind::none:
        return object->is_object() ? RowError() : format_error("the line is not an object");
    case JsonFault::Kind::memory:
        throw std::bad_alloc(); // not the row's fault: the run ends, and finds the row again
    case JsonFault::Kind::utf8:
        return {row_error_code(BATCHLLM_ERROR_ROW_INVALID_UTF8), "the line is not valid UTF-8"};
    case JsonFault::Kind::number:
        *of_failed = find_line_id(text);
        break;
    case JsonFault::Kind::grammar:
        break;
    }
    return {"ROW_JSON", "the line is not JSON: " + fault.text};
}

RowError check_keys_differ(JsonView object) {
    const std::optional<std::string> path = find_equal_keys(object);
    if (!path.has_value()) return {};
    return format_error("the key \"" + *path + "\" is given twice");
}

} // namespace batchllm::cli
