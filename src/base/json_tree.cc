#include "base/json_tree.h"

#include "base/json_view.h"

namespace batchllm {
namespace {

constexpr JsonRules rules = {.most_depth = 200}; // which bounds the recursion of all who walk trees

JsonTree tree_of(JsonView value) {
    JsonTree tree;
    tree.kind = value.kind();
    if (const auto text = value.is_string() ? value.string() : value.number_text()) {
        tree.text = *text;
    } else if (const auto truth = value.boolean()) {
        tree.boolean = *truth;
    } else if (const auto items = value.items()) {
        tree.items.reserve(items->size());
        for (const JsonView item : *items) tree.items.push_back(tree_of(item));
    } else if (const auto members = value.members()) {
        tree.members.reserve(members->size());
        for (const auto [key, member] : *members) {
            tree.members.push_back({std::string(key), tree_of(member)});
        }
    }
    return tree;
}

} // namespace

const JsonTree *JsonTree::find(std::string_view key) const {
    for (const auto &member : members) {
        if (member.name == key) return &member.value;
    }
    return nullptr;
}

Result<JsonTree> parse_json_tree(std::string_view text, const std::string &name, size_t limit) {
    constexpr int32_t code = BATCHLLM_ERROR_INVALID_ARGUMENT;
    if (text.size() > limit) return error(code, "%s: longer than %zu bytes", name.c_str(), limit);
    JsonParser parser;
    JsonView root;
    const JsonFault fault = parser.parse(text, &root, rules);
    if (fault.kind == JsonFault::Kind::memory) {
        return error(BATCHLLM_ERROR_OUT_OF_MEMORY, "%s: out of memory", name.c_str());
    }
    if (fault.kind != JsonFault::Kind::none) {
        return error(code, "%s: not JSON: %s", name.c_str(), fault.text.c_str());
    }
    if (const auto path = find_equal_keys(root)) {
        return error(code, "%s: the key \"%s\" is given twice", name.c_str(), path->c_str());
    }
    return tree_of(root);
}

} // namespace batchllm
