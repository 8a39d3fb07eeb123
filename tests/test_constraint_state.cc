// Masks, forced text and markers against a slow matcher, over grammars made at random.
#include <atomic>
#include <memory>
#include <random>
#include <thread>

#include "constraint/constraint.h"
#include "constraint/regex.h"
#include "constraint_reference.h"
#include "seed.h"
#include "testing.h"

using namespace batchllm;

namespace {

uint64_t seed = 0;

// ---- Vocabularies --------------------------------------------------------------------------------

// All bytes, pieces of the letters that the grammars below use, a special token and two that end a text.
struct TestVocabulary {
    std::vector<std::string> tokens;
    std::vector<uint8_t> special;
    std::vector<int32_t> eos;
    std::shared_ptr<const TokenVocabulary> made;
};

TestVocabulary make_vocabulary(std::mt19937_64 *random) {
    TestVocabulary vocabulary;
    for (int32_t byte = 0; byte < 256; ++byte)
        vocabulary.tokens.emplace_back(1, static_cast<char>(byte));
    const std::string pieces[] = {"a", "b", "c", ",", "\xC3\xA9", "\"", "x", "1"};
    for (int32_t i = 0; i < 300; ++i) {
        std::string token;
        const auto parts = 2 + (*random)() % 5;
        for (size_t part = 0; part < parts; ++part)
            token += pieces[(*random)() % std::size(pieces)];
        if ((*random)() % 8 == 0) token.pop_back(); // may be cut inside a character
        vocabulary.tokens.push_back(token);
    }
    vocabulary.special.assign(vocabulary.tokens.size(), 0);
    for (const char *text : {"a", "</s>", "<|end|>"}) {
        vocabulary.tokens.push_back(text);
        vocabulary.special.push_back(1);
    }
    const auto size = static_cast<int32_t>(vocabulary.tokens.size());
    vocabulary.eos = {size - 2, size - 1};
    vocabulary.made =
        TokenVocabulary::make(vocabulary.tokens, vocabulary.special, vocabulary.eos).value();
    return vocabulary;
}

bool is_allowed(const AllowedTokens &allowed, int32_t token) {
    return (allowed.words[token / 32] >> (token % 32) & 1) != 0;
}

std::shared_ptr<const Constraint> must_make(const Grammar &grammar,
                                            const TestVocabulary &vocabulary,
                                            const ConstraintOptions &options = {}) {
    auto made = Constraint::make(grammar, vocabulary.made, options);
    if (!made.ok()) fail_msg("%s", made.status().message().c_str());
    return std::move(made).value();
}

// ---- Grammars at random --------------------------------------------------------------------------

class RandomGrammar {
  public:
    explicit RandomGrammar(std::mt19937_64 *random) : random_(*random) {}

    Grammar make() {
        for (int32_t i = 0; i < 2; ++i)
            rules_.push_back(grammar_.declare("rule" + std::to_string(i)));
        for (const NodeId rule : rules_) grammar_.define(rule, node(3));
        grammar_.set_root(pick(3) == 0 ? rules_[0] : node(4));
        return std::move(grammar_);
    }

  private:
    size_t pick(size_t n) { return random_() % n; }

    std::string word() {
        const char *words[] = {"a", "b", "ab", "abc", ",", "\xC3\xA9", "aa", "\"", "ca", ""};
        return words[pick(std::size(words))];
    }

    NodeId terminal() {
        const char *expressions[] = {"[ab]+",    "a*b",      "(ab|ba)*",
                                     "[^\"]",    "\\d{1,2}", "[a-c]{2,3}",
                                     ".",        "x?",       "[\xC3\xA9\xE2\x82\xAC]",
                                     "(a|b)*abb"};
        Budget budget;
        return grammar_.terminal(
            compile_regex(expressions[pick(std::size(expressions))], {}, &budget).value());
    }

    // Text that is never empty.
    NodeId solid(int32_t depth) {
        const char *words[] = {"a", "b", "c", "ab", "\"a\":", "\"b\":"};
        return grammar_.sequence({grammar_.bytes(words[pick(std::size(words))]),
                                  pick(2) == 0 ? grammar_.empty() : node(depth - 1)});
    }

    NodeId node(int32_t depth) {
        if (depth <= 0) return pick(3) == 0 ? terminal() : grammar_.bytes(word());
        switch (pick(9)) {
        case 0:
            return grammar_.bytes(word());
        case 1:
            return terminal();
        case 2:
        case 3:
            return grammar_.sequence(nodes(depth));
        case 4:
            return grammar_.choice(nodes(depth));
        case 5:
            return rules_.empty() ? terminal() : guarded_rule();
        case 6: {
            const auto least = static_cast<int64_t>(pick(4));
            const int64_t greatest =
                pick(3) == 0 ? Automaton::kUnbounded : least + static_cast<int64_t>(pick(30));
            const NodeId separator = pick(2) == 0 ? grammar_.bytes(",") : kNoNode;
            return grammar_.repeat(node(depth - 1), least, greatest, separator);
        }
        case 7:
            return members(depth);
        default:
            return grammar_.sequence({guarded_rule(), node(depth - 1)});
        }
    }

    // Not at the start of anything: no left recursion.
    NodeId guarded_rule() {
        return grammar_.sequence({grammar_.bytes(pick(2) == 0 ? "a" : "b"),
                                  grammar_.optional(rules_[pick(rules_.size())]),
                                  pick(2) == 0 ? grammar_.empty() : grammar_.bytes("c")});
    }

    NodeId members(int32_t depth) {
        Members members;
        const size_t count = pick(5);
        for (size_t i = 0; i < count; ++i) members.elements.push_back({solid(depth), pick(2) == 0});
        if (pick(2) == 0) members.rest = solid(depth);
        if (pick(4) != 0) members.separator = grammar_.bytes(",");
        members.least = static_cast<int64_t>(pick(3));
        if (pick(2) == 0) members.greatest = members.least + static_cast<int64_t>(pick(4));
        if (pick(2) == 0) members.order = Members::Order::any;
        return grammar_.members(members);
    }

    std::vector<NodeId> nodes(int32_t depth) {
        std::vector<NodeId> made;
        for (size_t i = 0; i < 1 + pick(3); ++i) made.push_back(node(depth - 1));
        return made;
    }

    std::mt19937_64 &random_;
    Grammar grammar_;
    std::vector<NodeId> rules_;
};

// Whether the constraint takes the text byte by byte and finds it complete.
bool takes(const std::shared_ptr<const Constraint> &constraint, std::string_view text) {
    ConstraintState state(constraint);
    return state.advance_bytes(text).ok() && state.complete();
}

// One text by tokens drawn from the masks. Checks on the way that mask and advance agree.
void random_walk(const std::shared_ptr<const Constraint> &constraint, const Grammar &grammar,
                 const TestVocabulary &vocabulary, std::mt19937_64 *random) {
    ConstraintState state(constraint);
    std::string text;
    for (int32_t step = 0; step < 60; ++step) {
        std::string forced;
        assert_true(state.forced(&forced).ok());
        const auto allowed = state.allowed();
        if (!allowed.ok()) fail_msg("%s", allowed.status().message().c_str());
        if (allowed->count == 0) fail_msg("a dead end after \"%s\"", text.c_str());
        std::vector<int32_t> tokens;
        for (int32_t token = 0; token < vocabulary.made->size(); ++token) {
            ConstraintState copy = state;
            const bool taken = copy.advance(token).ok();
            if (taken != is_allowed(*allowed, token))
                fail_msg("token \"%s\" is %s after \"%s\"",
                         vocabulary.tokens[static_cast<size_t>(token)].c_str(),
                         taken ? "taken" : "refused", text.c_str());
            if (taken) tokens.push_back(token);
            if (taken && !copy.ended()) {
                const std::string &bytes = vocabulary.tokens[static_cast<size_t>(token)];
                const size_t common = std::min(bytes.size(), forced.size());
                assert_memory_equal(bytes.data(), forced.data(), common);
            }
        }
        assert_int_equal(tokens.size(), allowed->count);
        assert_int_equal(allowed->only, tokens.size() == 1 ? tokens[0] : -1);
        const bool ends = is_allowed(*allowed, vocabulary.eos[0]);
        assert_true(ends == state.complete());
        if (ends && !ReferenceMatcher(grammar, text).matches())
            fail_msg("\"%s\" is complete and does not match", text.c_str());
        if (!ends) assert_false(ReferenceMatcher(grammar, text).matches());
        const int32_t token = tokens[(*random)() % tokens.size()];
        assert_true(state.advance(token).ok());
        if (state.ended()) return;
        text += vocabulary.tokens[static_cast<size_t>(token)];
        if (text.size() > 60) return;
    }
}

void random_grammars_agree_with_the_slow_matcher(void **) {
    std::mt19937_64 random(seed);
    const TestVocabulary vocabulary = make_vocabulary(&random);
    int32_t made = 0;
    int32_t derived = 0;
    for (int32_t round = 0; round < 400; ++round) {
        const Grammar grammar = RandomGrammar(&random).make();
        ConstraintOptions options;
        if (round % 3 == 0) options.cache_bytes = 1; // a new graph at each step
        const auto constraint = Constraint::make(grammar, vocabulary.made, options);
        if (!constraint.ok()) {
            assert_int_equal(constraint.status().code(), BATCHLLM_ERROR_UNSUPPORTED);
            continue;
        }
        ++made;
        for (int32_t i = 0; i < 10; ++i) {
            const auto text = Derivation(grammar, &random).make();
            if (!text) continue;
            ++derived;
            if (!takes(*constraint, *text))
                fail_msg("round %d refuses \"%s\"", round, text->c_str());
            // The same text with a change, which may or may not match.
            std::string changed = *text;
            const size_t place = changed.empty() ? 0 : random() % changed.size();
            if (random() % 2 == 0)
                changed.erase(place, 1);
            else
                changed.insert(place, 1, "abc,\""[random() % 5]);
            if (changed.size() < 60)
                assert_true(takes(*constraint, changed) ==
                            ReferenceMatcher(grammar, changed).matches());
        }
        random_walk(*constraint, grammar, vocabulary, &random);
    }
    assert_true(made > 200);
    assert_true(derived > 1000);
}

} // namespace

int main() {
    seed = seed_of_run();
    const CMUnitTest tests[] = {
        cmocka_unit_test(random_grammars_agree_with_the_slow_matcher),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
