// libFuzzer: the text of a grammar, a regular expression or a JSON schema, and choices of tokens.
// It is rejected with a reason, or it behaves as constraint.h says: exactly the allowed tokens are
// accepted, a text can always continue or end, and forced text is allowed.
//
// Input: a byte (its kind: constraint_input.h; 16: after a marker), the text, a zero byte, choices.
#include <algorithm>
#include <bit>

#include "constraint/constraint.h"
#include "constraint_input.h"

using namespace batchllm;
using fuzz::check;

namespace {

std::shared_ptr<const TokenVocabulary> vocabulary() {
    std::vector<std::string> tokens;
    for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
    for (const char *piece : {"ab", "abc", "\":", "12", " \"", "\xC3\xA9", "\xA9x", "true"})
        tokens.emplace_back(piece);
    std::vector<uint8_t> special(tokens.size(), 0);
    tokens.emplace_back("</s>");
    special.push_back(1);
    const int32_t eos[] = {static_cast<int32_t>(tokens.size()) - 1};
    return TokenVocabulary::make(tokens, special, eos).value();
}

bool is_allowed(const AllowedTokens &allowed, int32_t token) {
    return (allowed.words[token / 32] >> (token % 32) & 1) != 0;
}

void walk(std::shared_ptr<const Constraint> constraint, bool from_the_start,
          std::string_view choices) {
    const int32_t size = constraint->vocabulary().size();
    ConstraintState state(constraint);
    for (const char choice : choices.substr(0, 60)) {
        const auto allowed = state.allowed();
        if (!allowed.ok()) {
            check(allowed.status().code() == BATCHLLM_ERROR_UNSUPPORTED);
            return;
        }
        int32_t count = 0;
        for (int32_t word = 0; word < constraint->vocabulary().words(); ++word)
            count += std::popcount(allowed->words[word]);
        check(count == allowed->count && count > 0);
        check(!from_the_start || is_allowed(*allowed, size - 1) == state.complete());
        std::string forced;
        if (state.forced(&forced, 64).ok() && !forced.empty()) {
            ConstraintState ahead = state;
            check(!state.complete() && ahead.advance_bytes(forced).ok());
        }
        // The next allowed token from the chosen one on, and a token that is not allowed, if there
        // is one.
        int32_t token = static_cast<unsigned char>(choice) % size;
        while (!is_allowed(*allowed, token)) token = (token + 1) % size;
        int32_t other = token;
        while (is_allowed(*allowed, other) && other < size - 1) ++other;
        const bool refused = !is_allowed(*allowed, other);
        if (refused) check(state.advance(other).code() == BATCHLLM_ERROR_INVALID_ARGUMENT);
        const Status advanced = state.advance(token);
        check(advanced.ok() || advanced.code() == BATCHLLM_ERROR_UNSUPPORTED);
        if (!advanced.ok() || state.ended()) return;
    }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const std::shared_ptr<const TokenVocabulary> tokens = vocabulary();
    if (size == 0) return 0;
    std::string_view input(reinterpret_cast<const char *>(data) + 1, size - 1);
    bool found = false;
    const std::string_view text = fuzz::next_part(&input, &found);
    Budget budget(1 << 12, 1 << 20); // small, so that a run is short
    const auto grammar = fuzz::read_grammar(data[0] % fuzz::kGrammarKinds, text, &budget);
    if (!grammar.ok()) {
        fuzz::check_refusal(grammar.status());
        return 0;
    }
    ConstraintOptions options;
    options.cache_bytes = 1 << 16;
    options.budget = budget;
    if ((data[0] & 16) != 0) options.start_after = "ab";
    const auto made = Constraint::make(*grammar, tokens, options);
    if (!made.ok()) {
        fuzz::check_refusal(made.status());
        return 0;
    }
    walk(*made, options.start_after.empty(), input);
    return 0;
}
