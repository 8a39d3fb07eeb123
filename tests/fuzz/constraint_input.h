// Bytes -> a grammar, for the targets of constraints.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "constraint/gbnf.h"
#include "constraint/json_schema/json_schema.h"
#include "constraint/lark.h"
#include "constraint/regex.h"
#include "fuzz_folder.h"

namespace batchllm::fuzz {

constexpr int kGrammarKinds = 8; // GBNF, Lark, expressions of ECMA and Python, four of JSON schemas

inline Result<Grammar> read_schema(int kind, std::string_view text, Budget *budget) {
    JsonSchemaOptions options;
    if ((kind & 1) != 0) options.spacing = JsonSchemaOptions::Spacing::flexible;
    if ((kind & 1) != 0) options.order = Members::Order::any;
    if ((kind & 2) != 0) options.loose = true;
    if ((kind & 2) != 0) options.numbers = NumberStyle::plain;
    ASSIGN_OR_RETURN(JsonSchemaGrammar made, compile_json_schema(text, options, budget));
    return std::move(made.grammar);
}

inline Result<Grammar> read_grammar(int kind, std::string_view text, Budget *budget) {
    if (kind == 0) return parse_gbnf(text, budget);
    if (kind == 1) return parse_lark(text, budget);
    if (kind >= 4) return read_schema(kind - 4, text, budget);
    ASSIGN_OR_RETURN(
        Automaton automaton,
        compile_regex(text, {.dialect = kind == 2 ? RegexDialect::ecma : RegexDialect::python},
                      budget));
    Grammar grammar;
    grammar.set_root(automaton.empty() ? grammar.never() : grammar.terminal(std::move(automaton)));
    return grammar;
}

// An error has one of two codes and a message.
inline void check_refusal(const Status &status) {
    check(status.code() == BATCHLLM_ERROR_INVALID_ARGUMENT ||
          status.code() == BATCHLLM_ERROR_UNSUPPORTED);
    check(!status.message().empty());
}

} // namespace batchllm::fuzz
