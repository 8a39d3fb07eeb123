// libFuzzer: pairs of a constraint and a sequence of tokens. At each step a token's bit is set if
// and only if advance() accepts it, tokens that end a text are allowed exactly if it is complete,
// forced text can be followed and every allowed token begins with it, and a second state with a
// tiny cache behaves the same.
//
// Input: a byte (a constraint of the list below, or beyond them a kind of constraint_input.h), for
// the latter its text and a zero byte; then two bytes per step: which of the allowed tokens.
#include <algorithm>

#include "constraint/constraint.h"
#include "constraint_input.h"

using namespace batchllm;
using fuzz::check;

namespace {

struct Known {
    int kind; // constraint_input.h
    const char *text;
};

constexpr Known kKnown[] = {
    {4, R"({"properties": {"name": {}, "names": {"type": "integer"}, "nam\u00e9": {}, "x": {}}})"},
    {5,
     R"({"properties": {"a": {"type": "string", "maxLength": 5}, "ab": {"type": "number", "minimum": 3}},
        "required": ["a"], "additionalProperties": {"type": "boolean"}})"},
    {4,
     R"({"type": "array", "items": {"enum": ["the", "there", 12, null]}, "minItems": 1, "maxItems": 40})"},
    {5,
     R"({"$defs": {"t": {"type": "object", "properties": {"k": {"type": "array", "items": {"$ref": "#/$defs/t"}}},
        "additionalProperties": false}}, "$ref": "#/$defs/t"})"},
    {4,
     R"({"type": "object", "patternProperties": {"^x-": {"type": "integer"}}, "additionalProperties": false})"},
    {4, R"({"type": "string", "pattern": "^[0-9a-zA-Z_-]{1,40}$"})"},
    {4, R"({"type": "string", "not": {"enum": ["yes", "no", "none"]}})"},
    {4, R"({"type": "string", "format": "date-time"})"},
    {4, R"({"type": "number", "multipleOf": 0.05, "exclusiveMaximum": 1000})"},
    {7,
     R"({"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 2}], "uniqueItems": true})"},
    {3, "(?=.*[A-Z])(?=.*\\d)[A-Za-z\\d]{8,}"},
    {3, "(?:[a-z]{2})*|[A-Z]*"},
    {2, "^(?:th|[^t])*$"},
    {3, "[\xC3\xA0-\xE2\x82\xAC]*[^a]"},
    {0, "root ::= \"(\" root* \")\" | [^()]{1,70}"},
    {0, "root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"ab\"*"},
    {1, "start: e\ne: t ((\"+\" | \"-\") t)*\nt: NUMBER | \"(\" e \")\"\n%import "
        "common.NUMBER\n%ignore \" \"\n"},
};

// All bytes, words with common beginnings, numbers, punctuation of JSON, cut characters and long
// runs.
std::shared_ptr<const TokenVocabulary> vocabulary() {
    std::vector<std::string> tokens;
    for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
    for (const char *piece :
         {"na",        "nam",   "name",    "names\"",  "the",    "there",
          "Th",        "TH1",   "xyz",     "aB1",      "abcd",   "abcdefgh",
          "12",        "123",   "00",      "2024",     "\":",    "\": ",
          "\",\"",     "{\"",   "\"}",     "[\"",      "\"]",    "}]",
          " \"",       ",\n",   "\n  ",    "true",     "null",   "false",
          "e+",        ".5",    "-1",      "\\u",      "\\\"",   "\\n",
          "\xC3\xA9",  "\xA9x", "m\xC3",   "\xE2\x82", "\xAC\"", "(((",
          "x-",        "ab",    "abab",    "no",       "none\"", "\xF0\x9F\x98\x80",
          "():",       "+(",    "2024-01", "T12:00:",  "Z\"",    "59",
          " thequick", "-_-"})
        tokens.emplace_back(piece);
    for (const size_t length : {16U, 32U, 33U, 64U, 128U, 251U})
        for (const char letter : {' ', 'a', '-'}) tokens.emplace_back(length, letter);
    tokens.emplace_back(); // spells nothing
    std::vector<uint8_t> special(tokens.size(), 0);
    for (const char *text : {"true", "</s>", "<|end|>"}) {
        tokens.emplace_back(text);
        special.push_back(1);
    }
    const auto size = static_cast<int32_t>(tokens.size());
    const int32_t eos[] = {size - 2, size - 1};
    return TokenVocabulary::make(tokens, special, eos).value();
}

bool is_allowed(const AllowedTokens &allowed, int32_t token) {
    return (allowed.words[token / 32] >> (token % 32) & 1) != 0;
}

// The tokens of the mask. advance() must accept exactly these; one token in kTriedEvery is tried,
// from `first` on.
constexpr int32_t kTriedEvery = 8;
std::vector<int32_t> tokens_of(ConstraintState *state, const AllowedTokens &allowed,
                               const std::string &forced, int32_t first) {
    const TokenVocabulary &tokens = state->constraint().vocabulary();
    std::vector<int32_t> found;
    for (int32_t token = 0; token < tokens.size(); ++token) {
        if (is_allowed(allowed, token)) found.push_back(token);
        if (token % kTriedEvery != first) continue;
        ConstraintState copy = *state;
        const Status taken = copy.advance(token);
        check(taken.ok() || taken.code() == BATCHLLM_ERROR_INVALID_ARGUMENT ||
              taken.code() == BATCHLLM_ERROR_ROW_CONSTRAINT);
        if (taken.code() == BATCHLLM_ERROR_ROW_CONSTRAINT) continue;
        check(taken.ok() == is_allowed(allowed, token));
        if (!taken.ok()) continue;
        check(copy.ended() == tokens.is_eos(token));
        if (copy.ended()) continue;
        const std::string_view bytes = tokens.bytes(token);
        const size_t common = std::min(bytes.size(), forced.size());
        check(bytes.substr(0, common) == std::string_view(forced).substr(0, common));
    }
    return found;
}

void follow(const std::shared_ptr<const Constraint> &constraint,
            const std::shared_ptr<const Constraint> &forgetful, std::string_view choices) {
    const TokenVocabulary &tokens = constraint->vocabulary();
    ConstraintState state(constraint);
    ConstraintState other(forgetful);
    for (size_t step = 0; step < 30 && 2 * step + 1 < choices.size(); ++step) {
        std::string forced;
        const Status known = state.forced(&forced, 64);
        const auto allowed = state.allowed();
        if (!known.ok() || !allowed.ok()) { // too ambiguous
            check((known.ok() ? allowed.status() : known).code() == BATCHLLM_ERROR_ROW_CONSTRAINT);
            return;
        }
        const auto low = static_cast<unsigned char>(choices[2 * step + 1]);
        const std::vector<int32_t> found = tokens_of(&state, *allowed, forced, low % kTriedEvery);
        check(!found.empty());
        check(found.size() == static_cast<size_t>(allowed->count));
        check(allowed->only == (allowed->count == 1 ? found[0] : -1));
        for (const int32_t eos : tokens.eos_ids())
            check(is_allowed(*allowed, eos) == state.complete());
        check(state.exhausted() ==
              (found == std::vector<int32_t>(tokens.eos_ids().begin(), tokens.eos_ids().end())));
        const auto same = other.allowed();
        check(!same.ok() || std::equal(same->words, same->words + tokens.words(), allowed->words));
        const size_t choice = static_cast<unsigned char>(choices[2 * step]) * 256U + low;
        const int32_t token = found[choice % found.size()];
        const Status advanced = state.advance(token);
        check(advanced.ok() || advanced.code() == BATCHLLM_ERROR_ROW_CONSTRAINT);
        if (!advanced.ok() || !other.advance(token).ok() || state.ended()) return;
    }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const std::shared_ptr<const TokenVocabulary> tokens = vocabulary();
    if (size == 0) return 0;
    std::string_view input(reinterpret_cast<const char *>(data) + 1, size - 1);
    constexpr int known = std::size(kKnown);
    const int which = data[0] % (known + fuzz::kGrammarKinds);
    const int kind = which < known ? kKnown[which].kind : which - known;
    bool found = false;
    const std::string_view text =
        which < known ? std::string_view(kKnown[which].text) : fuzz::next_part(&input, &found);
    Budget budget = which < known ? Budget() : Budget(1 << 12, 1 << 20); // so that a run is short
    const auto grammar = fuzz::read_grammar(kind, text, &budget);
    if (!grammar.ok()) {
        check(which >= known);
        fuzz::check_refusal(grammar.status());
        return 0;
    }
    ConstraintOptions options;
    options.cache_bytes = 1 << 20;
    options.budget = budget;
    const auto made = Constraint::make(*grammar, tokens, options);
    options.cache_bytes = 1;
    const auto forgetful = Constraint::make(*grammar, tokens, options);
    check(made.ok() == forgetful.ok() && (made.ok() || which >= known));
    if (made.ok())
        follow(*made, *forgetful, input);
    else
        fuzz::check_refusal(made.status());
    return 0;
}
