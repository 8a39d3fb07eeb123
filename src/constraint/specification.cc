#include "constraint/specification.h"

#include <utility>

#include "base/printable.h"
#include "constraint/gbnf.h"
#include "constraint/lark.h"
#include "constraint/regex.h"

namespace batchllm {
namespace {

Result<Grammar> grammar_of_choices(const std::vector<std::string> &choices, Budget *budget) {
    if (choices.empty()) return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "the list is empty");
    for (const std::string &choice : choices) {
        if (!Automaton::any_text().matches(choice))
            return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "%s is not valid UTF-8",
                         in_quotes(choice).c_str());
    }
    Grammar grammar;
    ASSIGN_OR_RETURN(Automaton automaton, Automaton::strings(choices, budget));
    grammar.set_root(grammar.terminal(std::move(automaton)));
    return grammar;
}

Result<Grammar> grammar_of_regex(const std::string &text, Budget *budget) {
    ASSIGN_OR_RETURN(Automaton automaton, compile_regex(text, {}, budget));
    if (automaton.empty())
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "no text matches the expression");
    Grammar grammar;
    grammar.set_root(grammar.terminal(std::move(automaton)));
    return grammar;
}

const char *name_of(ConstraintSpecification::Kind kind) {
    switch (kind) {
    case ConstraintSpecification::Kind::choices:
        return "choices";
    case ConstraintSpecification::Kind::regex:
        return "regex";
    case ConstraintSpecification::Kind::json_schema:
        return "json_schema";
    case ConstraintSpecification::Kind::gbnf:
    case ConstraintSpecification::Kind::lark:
        return "grammar";
    }
    return "constraint";
}

Result<Grammar> grammar_of(const ConstraintSpecification &wanted, Budget *budget,
                           std::vector<std::string> *warnings) {
    switch (wanted.kind) {
    case ConstraintSpecification::Kind::choices:
        return grammar_of_choices(wanted.choices, budget);
    case ConstraintSpecification::Kind::regex:
        return grammar_of_regex(wanted.text, budget);
    case ConstraintSpecification::Kind::gbnf:
        return parse_gbnf(wanted.text, budget);
    case ConstraintSpecification::Kind::lark:
        return parse_lark(wanted.text, budget);
    case ConstraintSpecification::Kind::json_schema: {
        ASSIGN_OR_RETURN(JsonSchemaGrammar made,
                         compile_json_schema(wanted.text, wanted.json, budget));
        *warnings = std::move(made.warnings);
        return std::move(made.grammar);
    }
    }
    return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "no such kind");
}

} // namespace

Result<SpecifiedConstraint> make_constraint(const ConstraintSpecification &specification,
                                            std::shared_ptr<const TokenVocabulary> vocabulary) {
    SpecifiedConstraint made;
    // One budget for the front end and for compiling its result.
    ConstraintOptions options = specification.options;
    const std::string kind = name_of(specification.kind);
    auto grammar = grammar_of(specification, &options.budget, &made.warnings);
    if (!grammar.ok()) return std::move(grammar).status().within(kind);
    auto constraint = Constraint::make(*grammar, std::move(vocabulary), options);
    if (!constraint.ok()) return std::move(constraint).status().within(kind);
    made.constraint = std::move(constraint).value();
    return made;
}

} // namespace batchllm
