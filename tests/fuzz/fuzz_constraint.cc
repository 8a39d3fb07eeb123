// libFuzzer target: expressions and grammars, and token sequences under what is made of them.
//     CC=clang CXX=clang++ meson setup build-fuzz -Dfuzz=true -Db_lundef=false
//     ninja -C build-fuzz tests/fuzz_constraint && mkdir -p build-fuzz/corpus &&
//     build-fuzz/tests/fuzz_constraint -max_total_time=60 build-fuzz/corpus
//
// The first byte says what the text is, the second where it ends; what follows draws tokens. Checked: a
// token is taken exactly if the mask has it; no place without a token; a text is complete exactly if a
// slow matcher finds that it matches.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "../constraint_reference.h"
#include "constraint/constraint.h"
#include "constraint/gbnf.h"
#include "constraint/lark.h"
#include "constraint/regex.h"

using namespace batchllm;

namespace {

const std::shared_ptr<const TokenVocabulary> &vocabulary() {
    static const auto made = [] {
        std::vector<std::string> tokens;
        for (int32_t byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
        for (const char *text :
             {"ab", "abc", "aa", "\":", "\",", "\xC3\xA9", "\xE2\x82", "00", "  "})
            tokens.emplace_back(text);
        tokens.emplace_back("</s>");
        std::vector<uint8_t> special(tokens.size(), 0);
        special.back() = 1;
        const auto eos = static_cast<int32_t>(tokens.size()) - 1;
        return TokenVocabulary::make(tokens, special, {&eos, 1}).value();
    }();
    return made;
}

Result<Grammar> parse(uint8_t kind, const std::string &text, Budget *budget) {
    if (kind % 4 == 0) return parse_gbnf(text, budget);
    if (kind % 4 == 1) return parse_lark(text, budget);
    const auto dialect = kind % 4 == 2 ? RegexDialect::ecma : RegexDialect::python;
    ASSIGN_OR_RETURN(Automaton automaton, compile_regex(text, {.dialect = dialect}, budget));
    Grammar grammar;
    grammar.set_root(grammar.terminal(std::move(automaton)));
    return grammar;
}

void require(bool holds) {
    if (!holds) std::abort();
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 3) return 0;
    const size_t length = std::min<size_t>(data[1], size - 2);
    const std::string text(reinterpret_cast<const char *>(data) + 2, length);
    ConstraintOptions options;
    options.budget = Budget(1 << 13, 1 << 21);
    options.cache_bytes = (data[0] & 64) != 0 ? 1 : 1 << 24;
    Budget budget = options.budget;
    const auto grammar = parse(data[0], text, &budget);
    if (!grammar.ok()) {
        const int32_t code = grammar.status().code();
        require(code == BATCHLLM_ERROR_INVALID_ARGUMENT || code == BATCHLLM_ERROR_UNSUPPORTED);
        return 0;
    }
    const auto constraint = Constraint::make(*grammar, vocabulary(), options);
    if (!constraint.ok()) {
        require(constraint.status().code() == BATCHLLM_ERROR_UNSUPPORTED);
        return 0;
    }
    ConstraintState state(*constraint);
    std::string written;
    for (size_t i = 2 + length; i < size && !state.ended() && written.size() < 24; ++i) {
        const auto allowed = state.allowed();
        if (!allowed.ok()) return 0; // too ambiguous
        std::vector<int32_t> tokens;
        for (int32_t token = 0; token < vocabulary()->size(); ++token) {
            ConstraintState copy = state;
            const bool taken = copy.advance(token).ok();
            require(taken == ((allowed->words[token / 32] >> (token % 32) & 1) != 0));
            if (taken) tokens.push_back(token);
        }
        require(!tokens.empty() && static_cast<int32_t>(tokens.size()) == allowed->count);
        require(state.complete() == ReferenceMatcher(*grammar, written).matches());
        const int32_t token = tokens[data[i] % tokens.size()];
        require(state.advance(token).ok());
        if (!state.ended()) written += vocabulary()->bytes(token);
    }
    return 0;
}
