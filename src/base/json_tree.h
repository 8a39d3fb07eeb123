// JSON text -> a tree of values that owns its text, for values that are kept, combined or made.
// Numbers are kept as written: the bounds of a schema are not rounded.
//
// UTF-8, one value, no duplicate keys, at most 200 levels deep.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json_view.h"
#include "base/status.h"

namespace batchllm {

struct JsonTree {
    struct Member;
    using Kind = JsonNode::Kind;
    Kind kind = Kind::null;
    bool boolean = false;
    std::string text; // a string's value; a number as written
    std::vector<JsonTree> items;
    std::vector<Member> members; // in the order of the text

    bool is_boolean() const { return kind == Kind::boolean; }
    bool is_number() const { return kind == Kind::number; }
    bool is_string() const { return kind == Kind::string; }
    bool is_array() const { return kind == Kind::array; }
    bool is_object() const { return kind == Kind::object; }
    const JsonTree *find(std::string_view key) const; // null: absent
};

struct JsonTree::Member {
    std::string name;
    JsonTree value;
};

// name: the text's name in errors ("NAME: not JSON: .. at byte 5"), whose code is
// BATCHLLM_ERROR_INVALID_ARGUMENT. Fails if the text is longer than `limit` bytes.
Result<JsonTree> parse_json_tree(std::string_view text, const std::string &name, size_t limit);

} // namespace batchllm
