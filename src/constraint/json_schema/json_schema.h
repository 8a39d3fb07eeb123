// A JSON schema (drafts 4, 6, 7, 2019-09 and 2020-12) -> the grammar of the JSON texts that it accepts.
//
// Exact: every text of the grammar is a value that the schema accepts, and every accepted value can
// be written in the spelling below. A keyword without such a grammar is an error that names it and
// its path ("#/properties/a/contains: .."), or, with `loose`, is loosened with a warning.
//
// Spelling:
//   whitespace  compact: none. flexible: after { [ , and before } ] nothing, one space, or a line feed
//               with up to 64 spaces or tabs; after : nothing or one space.
//   members     Each name once, except for names that the schema does not mention: a grammar cannot
//   tell
//               whether such a name came before. Order::declared: first the names in the schema's
//               own
//               `properties`, then those in its `required`, then likewise those that are reached
//               through
//               dependentRequired, dependentSchemas, dependencies, $ref, allOf, anyOf, oneOf, not
//               and if, each
//               in the order of its text, without branches that do not hold. If schemas of several
//               places
//               apply, those of the first place come first. Then all others. Order::any: any order.
//   strings     json_schema_string.h. numbers: json_schema_number.h.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "constraint/grammar.h"
#include "constraint/json_schema/number.h"

namespace batchllm {

struct JsonSchemaOptions {
    enum class Spacing : uint8_t { compact, flexible };
    Spacing spacing = Spacing::compact;
    Members::Order order = Members::Order::declared;
    NumberStyle numbers = NumberStyle::any;
    bool formats = true; // whether `format` is enforced; false: it is ignored
    bool loose = false;
};

struct JsonSchemaGrammar {
    Grammar grammar;
    std::vector<std::string> warnings; // what is not enforced
};

// BATCHLLM_ERROR_INVALID_ARGUMENT for an invalid schema, or one that no value satisfies;
// BATCHLLM_ERROR_UNSUPPORTED for a schema that cannot be enforced.
Result<JsonSchemaGrammar> compile_json_schema(std::string_view schema,
                                              const JsonSchemaOptions &options, Budget *budget);

} // namespace batchllm
