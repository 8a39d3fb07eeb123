#include "cli/line_json.h"

#include <new>
#include <utility>

#include "base/json_tree.h"
#include "cli/json_text.h"
#include "cli/row_parameters.h"

namespace batchllm::cli {
namespace {

// A parser keeps its memory for the longest line so far.
constexpr size_t long_line = size_t{8} << 20;

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
        const JsonFault::Kind fault = parser.parse(value.text, false, &number).kind;
        if (fault == JsonFault::Kind::none) {
            append_id(number, &id);
            return id;
        }
        const auto as_written = parse_json_tree(value.text, "id", value.text.size());
        // The row is not to blame: the run ends, and --resume reads the row again.
        if (fault == JsonFault::Kind::memory ||
            (!as_written.ok() && as_written.status().code() == BATCHLLM_ERROR_OUT_OF_MEMORY)) {
            throw std::bad_alloc();
        }
        return as_written.ok() ? value.text : "null";
    }
    default:
        return "null";
    }
}

void append_tree(std::string *out, const JsonTree &tree) {
    const char *separator = "";
    switch (tree.kind) {
    case JsonTree::Kind::null:
        *out += "null";
        return;
    case JsonTree::Kind::boolean:
        append_json(out, tree.boolean);
        return;
    case JsonTree::Kind::number:
        *out += tree.text;
        return;
    case JsonTree::Kind::string:
        append_json(out, std::string_view(tree.text));
        return;
    case JsonTree::Kind::array:
        *out += '[';
        for (const JsonTree &item : tree.items) {
            *out += std::exchange(separator, ",");
            append_tree(out, item);
        }
        *out += ']';
        return;
    case JsonTree::Kind::object:
        JsonObject object(out);
        for (const auto &[name, value] : tree.members) {
            object.key(name);
            append_tree(out, value);
        }
        object.close();
    }
}

// A line with a number that no type can hold.
struct UnreadLine {
    LineId id;
    std::string text; // the line, with ids that are numbers turned into strings
};

std::optional<UnreadLine> read_apart(std::string_view text) {
    // A tree keeps numbers as they were written.
    Result<JsonTree> tree = parse_json_tree(text, "line", text.size(), JsonNumbers::malformed_too);
    if (!tree.ok()) {
        if (tree.status().code() == BATCHLLM_ERROR_OUT_OF_MEMORY) throw std::bad_alloc();
        return std::nullopt;
    }
    UnreadLine line;
    for (auto &[name, value] : tree->members) {
        if (name == "body" || name == "custom_id") line.id.batch = true;
        if (name != "id" && name != "custom_id") continue;
        std::string &id = name == "id" ? line.id.id : line.id.custom_id;
        id = id_of(value);
        if (value.is_number() && id != "null") value.kind = JsonTree::Kind::string;
    }
    append_tree(&line.text, *tree);
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

RowError LineParser::parse(std::string_view text, JsonView *object, std::optional<LineId> *own_id) {
    if (text.size() > long_line) parser_ = JsonParser();
    const JsonFault fault = parser_.parse(text, true, object);
    switch (fault.kind) {
    case JsonFault::Kind::none:
        return object->is_object() ? RowError() : format_error("the line is not an object");
    case JsonFault::Kind::memory:
        throw std::bad_alloc(); // the row is not to blame: --resume reads it again
    case JsonFault::Kind::utf8:
        return {row_error_code(BATCHLLM_ERROR_ROW_INVALID_UTF8), "the line is not valid UTF-8"};
    case JsonFault::Kind::number:
        if (const auto apart = read_apart(text)) {
            *own_id = apart->id;
            const JsonFault::Kind kind = parser_.parse(apart->text, false, object).kind;
            if (kind == JsonFault::Kind::memory) throw std::bad_alloc();
            if (kind == JsonFault::Kind::none && object->is_object()) return {};
        }
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
