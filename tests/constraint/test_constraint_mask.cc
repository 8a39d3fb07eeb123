// Checks every token's bit in a mask against advance(), over a vocabulary like that of a model and
// over states whose masks are made in different ways: all of a slice, some of it, all except what
// some name forbids, none.
#include <random>

#include "../../bench/constraint_vocabulary.h"
#include "constraint/specification.h"
#include "seed.h"
#include "testing.h"

using namespace batchllm;

namespace {

using Kind = ConstraintSpecification::Kind;

struct Case {
    Kind kind;
    const char *text;
    std::vector<const char *> starts; // texts after which masks are checked
};

const std::vector<Case> &cases() {
    static const std::vector<Case> all = {
        // Declared names among all others.
        {Kind::json_schema,
         R"({"properties": {"name": {}, "names": {"type": "integer"}, "nam\u00e9": {}, "Total": {}, "x": {}}})",
         {"{\"", "{\"na", "{\"nam\xC3", "{\"names", "{\"Total\":1,\"", "{\"other\":\""}},
        {Kind::json_schema,
         R"({"additionalProperties": {"type": "integer"}, "properties": {"the": {"const": 1},
          "there": {"const": 2}, "thou": {"const": 3}}})",
         {"{\"t", "{\"th", "{\"q"}},
        {Kind::json_schema,
         R"({"patternProperties": {"^x-": {"type": "integer"}}, "additionalProperties": false})",
         {"{\"", "{\"x", "{\"x-"}},
        {Kind::json_schema,
         R"({"type": "string", "not": {"enum": ["yes", "no", "none", "n\u00f6"]}})",
         {"\"", "\"n", "\"non"}},
        {Kind::json_schema,
         R"({"enum": ["the", "there", "their", "other", "\u6771\u4eac"]})",
         {"", "\"", "\"the"}},
        // Lengths.
        {Kind::json_schema, R"({"type": "string", "maxLength": 5})", {"\"", "\"ab", "\"abcde"}},
        {Kind::json_schema,
         R"({"type": "array", "items": {"type": "string", "maxLength": 255}, "maxItems": 3})",
         {"[\"", "[\"a\",\"", "[\"a\",\"b\",\"c"}},
        {Kind::json_schema,
         R"({"type": "string", "pattern": "^[0-9a-zA-Z_-]{1,40}$"})",
         {"\"", "\"abcdefghijklmnopqrs"}},
        {Kind::json_schema,
         R"({"type": "string", "format": "uri"})",
         {"\"", "\"ht", "\"https://a"}},
        // Whole classes and partial ones.
        {Kind::regex, "[a-z]+(?:\\.[a-z]+)*", {"", "a", "a."}},
        {Kind::regex, "(?=.*[A-Z])(?=.*\\d)[A-Za-z\\d]{8,}", {"", "a", "aB", "aB1"}},
        {Kind::regex, "(?=.*[A-Z])(?=.*\\d)(?=.*[xyz]).*", {"", "\xC3\xA9", "B1"}},
        {Kind::regex, "(?:[a-z]{2})*|[A-Z]*", {"", "a", "A"}},
        {Kind::regex, "[\xC3\xA0-\xE2\x82\xAC]*[^a]", {"", "\xC3\xA9", "\xC3"}},
        {Kind::regex, "(?:th|[^t])*", {"", "t", "e"}},
        {Kind::gbnf, "root ::= \"(\" root \")\" | [^()]* ", {"", "(", "(the"}},
    };
    return all;
}

struct Vocabulary {
    std::vector<std::string> tokens;
    int32_t eos = 0;
    std::shared_ptr<const TokenVocabulary> made;
};

Vocabulary make_vocabulary() {
    Vocabulary vocabulary;
    vocabulary.tokens = VocabularyMaker::make(30'000);
    vocabulary.eos = static_cast<int32_t>(vocabulary.tokens.size());
    vocabulary.tokens.emplace_back("</s>");
    std::vector<uint8_t> special(vocabulary.tokens.size(), 0);
    special.back() = 1;
    vocabulary.made =
        TokenVocabulary::make(vocabulary.tokens, special, {&vocabulary.eos, 1}).value();
    return vocabulary;
}

// The tokens in the mask, after checking each token.
std::vector<int32_t> checked_tokens(ConstraintState *state, const Vocabulary &vocabulary,
                                    const std::string &text) {
    const auto allowed = state->allowed();
    if (!allowed.ok()) fail_msg("%s", allowed.status().message().c_str());
    std::vector<int32_t> tokens;
    for (int32_t token = 0; token < vocabulary.made->size(); ++token) {
        const bool in_mask = (allowed->words[token / 32] >> (token % 32) & 1) != 0;
        ConstraintState copy = *state;
        const bool taken = copy.advance(token).ok();
        if (taken != in_mask)
            fail_msg("token \"%s\" after \"%s\": %s, and the mask says otherwise",
                     vocabulary.tokens[static_cast<size_t>(token)].c_str(), text.c_str(),
                     taken ? "taken" : "refused");
        if (in_mask) tokens.push_back(token);
    }
    assert_false(tokens.empty());
    assert_int_equal(tokens.size(), allowed->count);
    assert_int_equal(allowed->only, tokens.size() == 1 ? tokens[0] : -1);
    assert_int_equal(tokens.back() == vocabulary.eos, state->complete());
    return tokens;
}

void a_mask_has_a_token_if_and_only_if_it_may_come(void **) {
    std::mt19937_64 random(seed_of_run());
    const Vocabulary vocabulary = make_vocabulary();
    for (const Case &wanted : cases()) {
        ConstraintSpecification specification;
        specification.kind = wanted.kind;
        specification.text = wanted.text;
        const auto made = make_constraint(specification, vocabulary.made);
        if (!made.ok()) fail_msg("%s: %s", wanted.text, made.status().message().c_str());
        for (const char *start : wanted.starts) {
            ConstraintState state(made->constraint);
            std::string text = start;
            const Status begun = state.advance_bytes(text);
            if (!begun.ok()) fail_msg("%s: %s: %s", wanted.text, start, begun.message().c_str());
            for (int32_t step = 0; step < 2; ++step) {
                const std::vector<int32_t> tokens = checked_tokens(&state, vocabulary, text);
                const int32_t token = tokens[random() % tokens.size()];
                assert_true(state.advance(token).ok());
                if (state.ended()) break;
                text += vocabulary.tokens[static_cast<size_t>(token)];
            }
        }
    }
}

} // namespace

int main() {
    const CMUnitTest tests[] = {cmocka_unit_test(a_mask_has_a_token_if_and_only_if_it_may_come)};
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
