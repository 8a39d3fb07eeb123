// A schema's text -> its subschemas, numbered, with their keywords found and their references
// resolvable. Handles dialects, `$id`, anchors and JSON pointers, but not the meaning of keywords.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/json_tree.h"
#include "constraint/json_schema/keyword.h"

namespace batchllm {

using SchemaId = int32_t;

struct Schema {
    const JsonTree *json; // an object or a boolean
    SchemaId parent;      // -1: the root
    std::string step;     // from the parent: "properties/a", escaped as a JSON pointer
    SchemaDialect dialect;
    std::string base; // the URI that references are resolved against
    // Null: absent, or not a keyword of this dialect.
    std::array<const JsonTree *, static_cast<size_t>(SchemaKeyword::count)> keywords;
    // Created by the compiler, not found in the text: any of these schemas, or exactly this value.
    std::vector<SchemaId> alternatives;
    const JsonTree *value = nullptr;

    const JsonTree *find(SchemaKeyword keyword) const {
        return keywords[static_cast<size_t>(keyword)];
    }
};

// Schemas are numbered in text order.
class SchemaDocument {
  public:
    static Result<std::unique_ptr<SchemaDocument>> load(std::string_view text);

    SchemaId root() const { return 0; }
    // Valid as long as the document.
    const Schema &at(SchemaId id) const { return schemas_[static_cast<size_t>(id)]; }
    // The schema at this place under `parent`.
    Result<SchemaId> child(SchemaId parent, const JsonTree *json, SchemaKeyword keyword,
                           std::string_view member = {});
    // The target of a `$ref` (or `$dynamicRef`) in this schema.
    Result<SchemaId> resolve(SchemaId from, const std::string &reference);
    // Whether a dynamic reference to this anchor can mean only one schema.
    bool one_dynamic_anchor(const std::string &name) const;

    SchemaId make_value(const JsonTree *value, SchemaId parent);
    SchemaId make_any_of(std::vector<SchemaId> alternatives, SchemaId parent);

    // "#/properties/a".
    std::string path(SchemaId id) const;
    // "#/properties/a/contains: problem".
    Status fail(int32_t code, SchemaId id, SchemaKeyword keyword, const std::string &problem) const;

  private:
    SchemaDocument() = default;
    struct Resource {
        const JsonTree *json;
        SchemaId id;
    };
    Result<SchemaId> add(const JsonTree *json, SchemaId parent, std::string step);
    Status choose_dialect(Schema *schema) const;
    Status add_names(SchemaId id);
    void find_keywords(Schema *schema) const;
    Status walk(SchemaId id);
    Status walk_children(SchemaId id, SchemaKeyword keyword, const JsonTree &json);
    Result<SchemaId> follow_pointer(const Resource &resource, std::string_view pointer,
                                    const std::string &reference);
    Status unresolved(const std::string &reference) const;

    JsonTree tree_;
    std::deque<Schema> schemas_; // never moved
    std::unordered_map<const JsonTree *, SchemaId> by_place_;
    std::unordered_map<std::string, Resource> resources_;
    std::unordered_map<std::string, SchemaId> anchors_;    // how many have this name
    std::unordered_map<std::string, int> dynamic_anchors_; // how many have the name
};

} // namespace batchllm
