#include "constraint/json_schema/keyword.h"

#include <array>
#include <unordered_map>

namespace batchllm {

namespace {

using Keyword = SchemaKeyword;

// In the order of the enumeration.
constexpr std::array<std::string_view, static_cast<size_t>(Keyword::count)> kKeywords = {
    "additionalItems",
    "additionalProperties",
    "allOf",
    "$anchor",
    "anyOf",
    "const",
    "contains",
    "definitions",
    "$defs",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "$dynamicAnchor",
    "$dynamicRef",
    "else",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "$id",
    "if",
    "items",
    "maxContains",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minContains",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "not",
    "id",
    "oneOf",
    "pattern",
    "patternProperties",
    "prefixItems",
    "properties",
    "propertyNames",
    "$recursiveRef",
    "$ref",
    "required",
    "$schema",
    "then",
    "type",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
};

} // namespace

std::string_view keyword_name(Keyword keyword) { return kKeywords[static_cast<size_t>(keyword)]; }

std::optional<Keyword> keyword_of(std::string_view name) {
    static const std::unordered_map<std::string_view, Keyword> all = [] {
        std::unordered_map<std::string_view, Keyword> table;
        for (size_t i = 0; i < kKeywords.size(); ++i) table[kKeywords[i]] = static_cast<Keyword>(i);
        return table;
    }();
    const auto found = all.find(name);
    if (found == all.end()) return std::nullopt;
    return found->second;
}

bool is_known(SchemaDialect dialect, Keyword keyword) {
    const bool modern = dialect >= SchemaDialect::draft2019;
    const bool latest = dialect >= SchemaDialect::draft2020;
    switch (keyword) {
    case Keyword::old_id:
        return dialect == SchemaDialect::draft4;
    case Keyword::id:
        return dialect != SchemaDialect::draft4;
    case Keyword::const_:
    case Keyword::contains:
    case Keyword::propertyNames:
        return dialect >= SchemaDialect::draft6;
    case Keyword::if_:
    case Keyword::then:
    case Keyword::else_:
        return dialect >= SchemaDialect::draft7;
    case Keyword::anchor:
    case Keyword::defs:
    case Keyword::dependentRequired:
    case Keyword::dependentSchemas:
    case Keyword::maxContains:
    case Keyword::minContains:
    case Keyword::unevaluatedItems:
    case Keyword::unevaluatedProperties:
        return modern;
    case Keyword::recursiveRef:
        return dialect == SchemaDialect::draft2019;
    case Keyword::dynamicAnchor:
    case Keyword::dynamicRef:
    case Keyword::prefixItems:
        return latest;
    case Keyword::dependencies:
        return !modern || dialect == SchemaDialect::unnamed;
    case Keyword::additionalItems:
        return dialect != SchemaDialect::draft2020;
    default:
        return true;
    }
}

SchemasHeld schemas_held(Keyword keyword) {
    switch (keyword) {
    case Keyword::additionalItems:
    case Keyword::additionalProperties:
    case Keyword::contains:
    case Keyword::else_:
    case Keyword::if_:
    case Keyword::not_:
    case Keyword::propertyNames:
    case Keyword::then:
    case Keyword::unevaluatedItems:
    case Keyword::unevaluatedProperties:
        return SchemasHeld::one;
    case Keyword::allOf:
    case Keyword::anyOf:
    case Keyword::oneOf:
    case Keyword::prefixItems:
        return SchemasHeld::list;
    case Keyword::items:
        return SchemasHeld::one_or_list;
    case Keyword::definitions:
    case Keyword::defs:
    case Keyword::dependencies:
    case Keyword::dependentSchemas:
    case Keyword::patternProperties:
    case Keyword::properties:
        return SchemasHeld::map;
    default:
        return SchemasHeld::none;
    }
}

} // namespace batchllm
