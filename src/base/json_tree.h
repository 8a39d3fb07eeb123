// JSON text -> a tree of values that keeps what a schema needs and other readers drop: the order of
// members, and numbers as they were written, so that no bound is rounded.
//
// Parsed strictly: UTF-8, one document, no object with two equal keys, bounded in depth and size.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace batchllm {

struct JsonTree {
    enum class Kind : uint8_t { null, boolean, number, string, array, object };
    Kind kind = Kind::null;
    bool boolean = false;
    std::string text; // a string's value; a number as written
    std::vector<JsonTree> items;
    std::vector<std::pair<std::string, JsonTree>> members;

    bool is_boolean() const { return kind == Kind::boolean; }
    bool is_number() const { return kind == Kind::number; }
    bool is_string() const { return kind == Kind::string; }
    bool is_array() const { return kind == Kind::array; }
    bool is_object() const { return kind == Kind::object; }
    const JsonTree *find(std::string_view key) const; // null: absent
};

// name: of the text, for errors.
Result<JsonTree> parse_json_tree(std::string_view text, const std::string &name);

} // namespace batchllm
