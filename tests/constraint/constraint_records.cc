// Reads expressions and grammars with texts, and says which texts match, for
// tests/constraint/compare.py. One JSON object per line:
//     {"kind": "regex" | "ecma" | "gbnf" | "lark", "source": "...", "texts": ["...", ...]}
// and one line back: a digit for each text, 1 if it matches; or "error: ...".
//
// Each text goes through a ConstraintState byte by byte, and for a "regex" also through the
// automaton.
#include <cstdint>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "constraint/constraint.h"
#include "constraint/gbnf.h"
#include "constraint/lark.h"
#include "constraint/regex.h"

using namespace batchllm;

namespace {

std::shared_ptr<const TokenVocabulary> bytes_only() {
    std::vector<std::string> tokens;
    for (int32_t byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
    const std::vector<uint8_t> special(tokens.size(), 0);
    return TokenVocabulary::make(tokens, special, {}).value();
}

Result<std::string> answer(const std::string &line,
                           const std::shared_ptr<const TokenVocabulary> &vocabulary) {
    constexpr int32_t code = BATCHLLM_ERROR_INVALID_ARGUMENT;
    ASSIGN_OR_RETURN(const JsonDocument record, JsonDocument::parse(line, "record", code));
    ASSIGN_OR_RETURN(const std::string kind, record.root().string("kind"));
    ASSIGN_OR_RETURN(const std::string source, record.root().string("source"));
    ASSIGN_OR_RETURN(const JsonValue list, record.root().at("texts"));
    ASSIGN_OR_RETURN(const auto texts, list.elements());
    Budget budget;
    Grammar grammar;
    Automaton automaton;
    const bool regex = kind == "regex" || kind == "ecma";
    if (regex) {
        const RegexDialect dialect = kind == "ecma" ? RegexDialect::ecma : RegexDialect::python;
        ASSIGN_OR_RETURN(automaton, compile_regex(source, {.dialect = dialect}, &budget));
        if (automaton.empty()) return std::string(texts.size(), '0');
        grammar.set_root(grammar.terminal(automaton));
    } else if (kind == "gbnf") {
        ASSIGN_OR_RETURN(grammar, parse_gbnf(source, &budget));
    } else {
        ASSIGN_OR_RETURN(grammar, parse_lark(source, &budget));
    }
    ASSIGN_OR_RETURN(const auto constraint, Constraint::make(grammar, vocabulary, {}));
    std::string result;
    for (const JsonValue &value : texts) {
        ASSIGN_OR_RETURN(const std::string text, value.string());
        ConstraintState state(constraint);
        const bool taken = state.advance_bytes(text).ok() && state.complete();
        if (regex && taken != automaton.matches(text))
            return error(BATCHLLM_ERROR_INTERNAL, "the automaton and the state differ");
        result += taken ? '1' : '0';
    }
    return result;
}

} // namespace

int main() {
    const auto vocabulary = bytes_only();
    std::string line;
    while (std::getline(std::cin, line)) {
        const Result<std::string> result = answer(line, vocabulary);
        std::cout << (result.ok() ? *result : "error: " + result.status().message()) << std::endl;
    }
    return 0;
}
