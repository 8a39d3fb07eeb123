// The keywords of JSON Schema: which drafts define them, and which contain schemas.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace batchllm {

// Drafts older than 7 are supported as far as they agree with draft 7. `unnamed`: a schema without
// a draft is read as 2020-12; keywords that only older drafts define (`dependencies`, a list as
// `items`, a boolean as `exclusiveMinimum`) keep their meaning there.
enum class SchemaDialect : uint8_t { draft4, draft6, draft7, draft2019, draft2020, unnamed };

enum class SchemaKeyword : uint8_t {
    additionalItems,
    additionalProperties,
    allOf,
    anchor,
    anyOf,
    const_,
    contains,
    definitions,
    defs,
    dependencies,
    dependentRequired,
    dependentSchemas,
    dynamicAnchor,
    dynamicRef,
    else_,
    enum_,
    exclusiveMaximum,
    exclusiveMinimum,
    format,
    id,
    if_,
    items,
    maxContains,
    maxItems,
    maxLength,
    maxProperties,
    maximum,
    minContains,
    minItems,
    minLength,
    minProperties,
    minimum,
    multipleOf,
    not_,
    old_id,
    oneOf,
    pattern,
    patternProperties,
    prefixItems,
    properties,
    propertyNames,
    recursiveRef,
    ref,
    required,
    schema,
    then,
    type,
    unevaluatedItems,
    unevaluatedProperties,
    uniqueItems,
    count
};
std::string_view keyword_name(SchemaKeyword keyword);
std::optional<SchemaKeyword> keyword_of(std::string_view name);

// Whether the dialect has the keyword. All dialects have `$ref`, `$id` and `definitions`.
bool is_known(SchemaDialect dialect, SchemaKeyword keyword);

// How the value of a keyword contains schemas.
enum class SchemasHeld : uint8_t { none, one, list, one_or_list, map };
SchemasHeld schemas_held(SchemaKeyword keyword);

} // namespace batchllm
