#include "base/json_view.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/printable.h"

namespace batchllm {
namespace {

// Objects with up to this many members (nearly all objects) are checked without allocating memory.
constexpr size_t few_members = 16;

bool holds_values(JsonView value) { return value.is_array() || value.is_object(); }

// A key that occurs twice in the object.
std::optional<std::string_view> equal_keys_of(const JsonMembers &members) {
    std::array<std::string_view, few_members> few;
    std::vector<std::string_view> many;
    size_t count = 0;
    for (const auto [key, member] : members) {
        if (count < few_members) {
            if (std::find(few.begin(), few.begin() + count, key) != few.begin() + count) return key;
            few[count++] = key;
        } else {
            many.push_back(key);
        }
    }
    if (many.empty()) return std::nullopt;
    many.insert(many.end(), few.begin(), few.end());
    std::sort(many.begin(), many.end());
    const auto twice = std::adjacent_find(many.begin(), many.end());
    return twice == many.end() ? std::nullopt : std::optional(*twice);
}

// The path from `value` to the key: ".rope.base", "[3].id". The parser bounds the nesting depth and
// thus the recursion.
std::optional<std::string> path_to_equal_keys(JsonView value) {
    if (const auto items = value.items()) {
        size_t index = 0;
        for (const JsonView item : *items) {
            if (holds_values(item)) {
                if (auto path = path_to_equal_keys(item)) {
                    return "[" + std::to_string(index) + "]" + *path;
                }
            }
            ++index;
        }
    } else if (const auto members = value.members()) {
        if (const auto twice = equal_keys_of(*members)) return "." + printable(*twice);
        for (const auto [key, member] : *members) {
            if (!holds_values(member)) continue;
            if (auto path = path_to_equal_keys(member)) return "." + printable(key) + *path;
        }
    }
    return std::nullopt;
}

} // namespace

JsonView::Kind JsonView::kind() const {
    switch (element_.type()) {
    case simdjson::dom::element_type::ARRAY:
        return Kind::array;
    case simdjson::dom::element_type::OBJECT:
        return Kind::object;
    case simdjson::dom::element_type::STRING:
        return Kind::string;
    case simdjson::dom::element_type::INT64:
    case simdjson::dom::element_type::UINT64:
    case simdjson::dom::element_type::DOUBLE:
        return Kind::number;
    case simdjson::dom::element_type::BOOL:
        return Kind::boolean;
    case simdjson::dom::element_type::NULL_VALUE:
        break;
    }
    return Kind::null;
}

std::optional<JsonItems> JsonView::items() const {
    simdjson::dom::array array;
    if (element_.get(array) != simdjson::SUCCESS) return std::nullopt;
    return JsonItems(array);
}

std::optional<JsonMembers> JsonView::members() const {
    simdjson::dom::object object;
    if (element_.get(object) != simdjson::SUCCESS) return std::nullopt;
    return JsonMembers(object);
}

std::optional<JsonView> JsonView::find(std::string_view key) const {
    const std::optional<JsonMembers> object = members();
    return object.has_value() ? object->find(key) : std::nullopt;
}

std::optional<JsonView> JsonItems::first() const {
    if (empty()) return std::nullopt;
    return *begin();
}

std::optional<JsonView> JsonMembers::find(std::string_view key) const {
    simdjson::dom::element found;
    if (object_.at_key(key).get(found) != simdjson::SUCCESS) return std::nullopt;
    return JsonView(found);
}

std::optional<std::string> find_equal_keys(JsonView value) {
    std::optional<std::string> path = path_to_equal_keys(value);
    if (path.has_value() && path->front() == '.') path->erase(0, 1);
    return path;
}

JsonFault JsonParser::parse(std::string_view text, bool padded, JsonView *root) {
    simdjson::dom::element parsed;
    const auto problem =
        parser_.parse(reinterpret_cast<const uint8_t *>(text.data()), text.size(), !padded)
            .get(parsed);
    switch (problem) {
    case simdjson::SUCCESS:
        *root = JsonView(parsed);
        return {};
    case simdjson::MEMALLOC:
        return {JsonFault::Kind::memory, ""}; // a text would need memory
    case simdjson::UTF8_ERROR:
        return {JsonFault::Kind::utf8, "the text is not valid UTF-8"};
    case simdjson::NUMBER_ERROR:
        return {JsonFault::Kind::number, "a number is malformed or too large to be read"};
    default:
        return {JsonFault::Kind::grammar, simdjson::error_message(problem)};
    }
}

} // namespace batchllm
