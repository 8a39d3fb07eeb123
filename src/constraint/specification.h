// A caller's specification (a list, an expression, a schema, a grammar) -> a Constraint.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "constraint/constraint.h"
#include "constraint/json_schema/json_schema.h"

namespace batchllm {

struct ConstraintSpecification {
    enum class Kind : uint8_t {
        choices,     // one of the strings of `choices`
        regex,       // `text` in Python's dialect, for the whole output: regex.h
        json_schema, // `text`: json_schema.h
        gbnf,        // `text`: gbnf.h
        lark,        // `text`: lark.h
    };
    Kind kind = Kind::choices;
    std::vector<std::string> choices = {};
    std::string text = {};
    JsonSchemaOptions json = {}; // json_schema only
    ConstraintOptions options = {};
};

struct SpecifiedConstraint {
    std::shared_ptr<const Constraint> constraint;
    std::vector<std::string> warnings; // what a loose schema does not enforce
};

// Errors are those of the parts, prefixed with the kind: "regex: character 3: ..".
Result<SpecifiedConstraint> make_constraint(const ConstraintSpecification &specification,
                                            std::shared_ptr<const TokenVocabulary> vocabulary);

} // namespace batchllm
