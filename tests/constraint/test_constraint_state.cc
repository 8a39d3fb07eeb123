// Masks, forced text and markers against a slow matcher, over random grammars.
#include <atomic>
#include <memory>
#include <random>
#include <thread>

#include "constraint/constraint.h"
#include "constraint/regex.h"
#include "constraint/specification.h"
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

    // Never at the start of anything, so there is no left recursion.
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

// Whether the constraint accepts the text byte by byte and finds it complete.
enum class Taken { yes, no, too_ambiguous };

bool is_too_ambiguous(const Status &status) {
    return status.message().find("too ambiguous") != std::string::npos;
}

Taken takes(const std::shared_ptr<const Constraint> &constraint, std::string_view text) {
    ConstraintState state(constraint);
    const Status status = state.advance_bytes(text);
    if (is_too_ambiguous(status)) return Taken::too_ambiguous;
    return status.ok() && state.complete() ? Taken::yes : Taken::no;
}

// Builds one text from tokens drawn from the masks, checking that mask and advance agree.
void random_walk(const std::shared_ptr<const Constraint> &constraint, const Grammar &grammar,
                 const TestVocabulary &vocabulary, std::mt19937_64 *random) {
    ConstraintState state(constraint);
    std::string text;
    for (int32_t step = 0; step < 60; ++step) {
        std::string forced;
        const Status has_forced = state.forced(&forced);
        if (is_too_ambiguous(has_forced)) return;
        assert_true(has_forced.ok());
        const auto allowed = state.allowed();
        if (!allowed.ok() && is_too_ambiguous(allowed.status())) return;
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
    int32_t too_ambiguous = 0; // rejected although it matches; such grammars are rare
    for (int32_t round = 0; round < cases(400, 60); ++round) {
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
            const Taken taken = takes(*constraint, *text);
            if (taken == Taken::no) fail_msg("round %d refuses \"%s\"", round, text->c_str());
            too_ambiguous += taken == Taken::too_ambiguous;
            // The same text with a change, which may or may not match.
            std::string changed = *text;
            const size_t place = changed.empty() ? 0 : random() % changed.size();
            if (random() % 2 == 0)
                changed.erase(place, 1);
            else
                changed.insert(place, 1, "abc,\""[random() % 5]);
            if (changed.size() >= 60) continue;
            const Taken changed_taken = takes(*constraint, changed);
            if (changed_taken != Taken::too_ambiguous)
                assert_true((changed_taken == Taken::yes) ==
                            ReferenceMatcher(grammar, changed).matches());
        }
        random_walk(*constraint, grammar, vocabulary, &random);
    }
    assert_true(made > cases(200, 30));
    assert_true(derived > cases(1000, 150));
    assert_true(too_ambiguous * 100 < derived);
}

// ---- What a row does -----------------------------------------------------------------------------

SpecifiedConstraint must_make(const ConstraintSpecification &wanted,
                              const TestVocabulary &vocabulary) {
    auto made = make_constraint(wanted, vocabulary.made);
    if (!made.ok()) fail_msg("%s", made.status().message().c_str());
    return std::move(made).value();
}

int32_t token_of(const TestVocabulary &vocabulary, std::string_view text) {
    for (size_t i = 0; i < vocabulary.tokens.size(); ++i)
        if (vocabulary.tokens[i] == text && vocabulary.special[i] == 0)
            return static_cast<int32_t>(i);
    fail_msg("no token \"%s\"", std::string(text).c_str());
    return -1;
}

void choices_force_what_they_share(void **) {
    std::mt19937_64 random(seed);
    const TestVocabulary vocabulary = make_vocabulary(&random);
    ConstraintSpecification wanted;
    wanted.choices = {"positive", "positively \xC3\xA9", "positively \xC3\xA8"};
    const auto made = must_make(wanted, vocabulary);
    ConstraintState state(made.constraint);
    std::string text;
    assert_true(state.forced(&text).ok());
    assert_string_equal(text.c_str(), "positive");
    assert_true(state.advance_bytes(text).ok());
    assert_true(state.complete());
    text.clear();
    assert_true(state.forced(&text).ok()); // the text may end here
    assert_string_equal(text.c_str(), "");
    assert_true(state.advance(token_of(vocabulary, "l")).ok());
    assert_true(state.forced(&text).ok());
    assert_string_equal(text.c_str(), "y "); // both continue with C3, which is not a character
    assert_false(state.advance(token_of(vocabulary, "x")).ok());
    assert_true(state.advance_bytes("y \xC3").ok());
    text.clear();
    assert_true(state.forced(&text).ok());
    assert_string_equal(text.c_str(), ""); // inside a character
    assert_true(state.advance_bytes("\xA9").ok());
    assert_true(state.complete());
    const auto allowed = state.allowed();
    assert_int_equal(allowed->count, 2);
    assert_true(is_allowed(*allowed, vocabulary.eos[0]) && is_allowed(*allowed, vocabulary.eos[1]));
    assert_true(state.advance(vocabulary.eos[1]).ok());
    assert_true(state.ended());
    assert_false(state.advance(vocabulary.eos[1]).ok());
    assert_false(state.allowed().ok());
}

void special_tokens_never_match_by_their_text(void **) {
    std::mt19937_64 random(seed);
    const TestVocabulary vocabulary = make_vocabulary(&random);
    ConstraintSpecification wanted;
    wanted.kind = ConstraintSpecification::Kind::regex;
    wanted.text = "[a-z</>|]*";
    const auto made = must_make(wanted, vocabulary);
    ConstraintState state(made.constraint);
    const auto allowed = state.allowed();
    const auto special_a = static_cast<int32_t>(vocabulary.tokens.size()) - 3;
    assert_string_equal(vocabulary.tokens[static_cast<size_t>(special_a)].c_str(), "a");
    assert_false(is_allowed(*allowed, special_a));
    assert_false(state.advance(special_a).ok());
    assert_true(is_allowed(*allowed, token_of(vocabulary, "a")));
}

void a_marker_is_found_across_tokens(void **) {
    std::mt19937_64 random(seed);
    TestVocabulary vocabulary = make_vocabulary(&random);
    for (const char *text : {"<<en", "d>", "d>yes", "d>no", "d>ye", "<<<", "d>\n"}) {
        vocabulary.tokens.emplace_back(text);
        vocabulary.special.push_back(0);
    }
    vocabulary.made =
        TokenVocabulary::make(vocabulary.tokens, vocabulary.special, vocabulary.eos).value();
    ConstraintSpecification wanted;
    wanted.choices = {"yes"};
    wanted.options.start_after = "<<end>";
    const auto made = must_make(wanted, vocabulary);
    ConstraintState state(made.constraint);
    const auto take = [&](std::string_view text) {
        const int32_t token = token_of(vocabulary, text);
        const auto allowed = state.allowed();
        assert_true(allowed.ok());
        const bool shown = is_allowed(*allowed, token);
        const bool taken = state.advance(token).ok();
        assert_true(shown == taken);
        return taken;
    };
    assert_int_equal(state.allowed()->count, vocabulary.made->size());
    assert_true(take("a") && take("<<<"));
    assert_false(state.complete());
    std::string forced;
    assert_true(state.forced(&forced).ok() && forced.empty());
    assert_true(take("<<en"));
    // From here the marker may be completed, and only "yes" may follow it.
    assert_int_equal(state.allowed()->count, vocabulary.made->size() - 2);
    assert_false(take("d>no"));
    assert_false(take("d>\n"));
    assert_true(take("d>ye"));
    assert_true(state.forced(&forced).ok());
    assert_string_equal(forced.c_str(), "s");
    assert_int_equal(state.allowed()->only, token_of(vocabulary, "s"));
    assert_false(take("a"));
    assert_true(take("s"));
    assert_true(state.complete());
    // The spelling of special tokens counts, and the text before the marker may end with one.
    wanted.options.start_after = "</s>";
    const auto special = must_make(wanted, vocabulary);
    ConstraintState other(special.constraint);
    assert_true(other.advance(token_of(vocabulary, "b")).ok());
    assert_true(other.advance(vocabulary.eos[1]).ok());
    assert_true(other.ended());
}

void texts_keep_to_bytes_that_are_tokens(void **) {
    const std::vector<std::string> tokens = {"a", "b", "abc", "cab"};
    const std::vector<uint8_t> special(4, 0);
    const auto vocabulary = TokenVocabulary::make(tokens, special, {}).value();
    ConstraintSpecification wanted;
    wanted.kind = ConstraintSpecification::Kind::regex;
    wanted.text = "[ab]c*|c";
    const auto made = make_constraint(wanted, vocabulary);
    assert_true(made.ok());
    ConstraintState state(made->constraint);
    assert_int_equal(state.allowed()->count,
                     2); // "a", "b": after "abc" no text would be certain to end
    wanted.text = "c+";
    const auto none = make_constraint(wanted, vocabulary);
    assert_int_equal(none.status().code(), BATCHLLM_ERROR_UNSUPPORTED);
}

// A counter over 100,000 characters, an equally deep stack, and a graph that is dropped on the way.
void long_texts_stay_within_their_memory(void **) {
    std::mt19937_64 random(seed);
    const TestVocabulary vocabulary = make_vocabulary(&random);
    ConstraintSpecification wanted;
    wanted.kind = ConstraintSpecification::Kind::gbnf;
    wanted.text = "root ::= [a-c]{10,200000} | \"[\" root* \"]\"";
    wanted.options.cache_bytes = int64_t{1} << 20;
    const auto made = must_make(wanted, vocabulary);
    ConstraintState state(made.constraint);
    for (int32_t i = 0; i < 100'000; ++i) assert_true(state.advance_bytes("a").ok());
    assert_true(state.complete() && state.allowed().ok());
    ConstraintState deep(made.constraint);
    for (int32_t i = 0; i < 20'000; ++i) assert_true(deep.advance_bytes("[").ok());
    assert_true(deep.allowed().ok());
    for (int32_t i = 0; i < 20'000; ++i) assert_true(deep.advance_bytes("]").ok());
    assert_true(deep.complete());
}

// A graph that is dropped is freed piece by piece with each step, not at once by its last row.
void caches_are_freed_in_pieces(void **) {
    std::mt19937_64 random(seed);
    const TestVocabulary vocabulary = make_vocabulary(&random);
    ConstraintSpecification wanted;
    wanted.kind = ConstraintSpecification::Kind::gbnf;
    wanted.text = "root ::= [a-c]{10,200000}";
    wanted.options.cache_bytes = int64_t{4} << 20;
    const auto made = must_make(wanted, vocabulary);
    const int64_t others = Constraint::all_cached_bytes();
    ConstraintState state(made.constraint);
    int64_t before = others;
    int64_t freed = 0;
    for (int32_t i = 0; i < 100'000; ++i) {
        assert_true(state.advance_bytes("a").ok());
        const int64_t now = Constraint::all_cached_bytes();
        assert_true(before - now < int64_t{300} << 10);
        assert_true(now - others < wanted.options.cache_bytes + (int64_t{1} << 20));
        freed += std::max<int64_t>(before - now, 0);
        before = now;
    }
    assert_true(freed > 2 * wanted.options.cache_bytes);
}

// Each has a higher limit than all together: the sum stays below twice the common limit.
void constraints_share_a_limit(void **) {
    std::mt19937_64 random(seed);
    const TestVocabulary vocabulary = make_vocabulary(&random);
    ConstraintSpecification wanted;
    wanted.kind = ConstraintSpecification::Kind::gbnf;
    wanted.text = "root ::= [a-c]{10,200000}";
    wanted.options.all_cache_bytes = int64_t{4} << 20;
    const int64_t before = Constraint::all_cached_bytes();
    std::vector<SpecifiedConstraint> made;
    int64_t most = 0;
    for (int32_t i = 0; i < 20; ++i) {
        made.push_back(must_make(wanted, vocabulary));
        ConstraintState state(made.back().constraint);
        for (int32_t step = 0; step < 8'000; ++step) {
            assert_true(state.advance_bytes("a").ok());
            most = std::max(most, Constraint::all_cached_bytes() - before);
        }
        assert_true(state.complete() && state.allowed().ok());
    }
    assert_true(most > wanted.options.all_cache_bytes);
    assert_true(most < 2 * wanted.options.all_cache_bytes);
    made.clear();
    assert_int_equal(Constraint::all_cached_bytes(), before);
}

// Grammars in which a text can be read in more ways than can be counted.
void ambiguity_stays_bounded(void **) {
    std::mt19937_64 random(seed);
    const TestVocabulary vocabulary = make_vocabulary(&random);
    ConstraintSpecification wanted;
    wanted.kind = ConstraintSpecification::Kind::gbnf;
    for (const char *text :
         {"root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"a\" root | \"b\"",
          "root ::= (\"a\" | \"aa\" | [a-b]+)* | (\"a\"+ \"a\"+)+",
          "root ::= x x x x\nx ::= y y y y\ny ::= z z z z\nz ::= \"a\"? \"a\"? \"a\"?"}) {
        wanted.text = text;
        const auto made = must_make(wanted, vocabulary);
        ConstraintState state(made.constraint);
        for (int32_t i = 0; i < 60; ++i) {
            assert_true(state.allowed().ok());
            assert_true(state.advance_bytes("a").ok());
        }
    }
}

void threads_share_one_constraint(void **) {
    std::mt19937_64 random(seed);
    const TestVocabulary vocabulary = make_vocabulary(&random);
    ConstraintSpecification wanted;
    wanted.kind = ConstraintSpecification::Kind::json_schema;
    wanted.text = R"({"type": "object", "properties": {"a": {"type": "string", "maxLength": 9},
        "b": {"type": "array", "items": {"type": "integer"}}}, "required": ["a"]})";
    wanted.options.cache_bytes = 200'000; // dropped now and then while others use it
    const auto made = must_make(wanted, vocabulary);
    // What one thread finds alone.
    const auto run = [&](uint64_t number) {
        std::mt19937_64 own(number);
        ConstraintState state(made.constraint);
        std::vector<int32_t> taken;
        while (!state.ended() && taken.size() < 40) {
            const auto allowed = state.allowed();
            if (!allowed.ok() || allowed->count == 0) return std::vector<int32_t>{-1};
            auto skip = static_cast<int32_t>(own() % static_cast<uint64_t>(allowed->count));
            int32_t token = 0;
            while (!is_allowed(*allowed, token) || skip-- > 0) ++token;
            if (!state.advance(token).ok()) return std::vector<int32_t>{-2};
            taken.push_back(token);
        }
        return taken;
    };
    constexpr uint64_t rows = 40;
    std::vector<std::vector<int32_t>> alone;
    for (uint64_t row = 0; row < rows; ++row) alone.push_back(run(row));
    std::atomic<int32_t> wrong = 0;
    std::vector<std::thread> threads;
    for (uint64_t thread = 0; thread < 4; ++thread) {
        threads.emplace_back([&, thread] {
            for (uint64_t i = 0; i < rows; ++i) {
                const uint64_t row = (i + thread * 10) % rows;
                if (run(row) != alone[row]) ++wrong;
            }
        });
    }
    for (std::thread &thread : threads) thread.join();
    assert_int_equal(wrong, 0);
    for (const auto &tokens : alone) assert_true(tokens[0] >= 0);
}

} // namespace

int main() {
    seed = seed_of_run();
    const CMUnitTest tests[] = {
        cmocka_unit_test(random_grammars_agree_with_the_slow_matcher),
        cmocka_unit_test(choices_force_what_they_share),
        cmocka_unit_test(special_tokens_never_match_by_their_text),
        cmocka_unit_test(a_marker_is_found_across_tokens),
        cmocka_unit_test(texts_keep_to_bytes_that_are_tokens),
        cmocka_unit_test(long_texts_stay_within_their_memory),
        cmocka_unit_test(caches_are_freed_in_pieces),
        cmocka_unit_test(constraints_share_a_limit),
        cmocka_unit_test(ambiguity_stays_bounded),
        cmocka_unit_test(threads_share_one_constraint),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
