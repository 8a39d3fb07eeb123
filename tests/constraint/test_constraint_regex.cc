// Automata and regular expressions: what they accept, what is rejected and where, and that
// everything is bounded.
#include <random>

#include "constraint/automaton.h"
#include "constraint/regex.h"
#include "processor_time.h"
#include "seed.h"
#include "testing.h"
#include "text/regex/tree.h"

using namespace batchllm;

namespace {

Automaton must_compile(const std::string &text, RegexDialect dialect = RegexDialect::python) {
    Budget budget;
    auto made = compile_regex(text, {.dialect = dialect}, &budget);
    if (!made.ok()) fail_msg("%s: %s", text.c_str(), made.status().message().c_str());
    return std::move(made).value();
}

void must_refuse(const std::string &text, RegexDialect dialect, int32_t code,
                 const std::string &part) {
    Budget budget;
    const auto made = compile_regex(text, {.dialect = dialect}, &budget);
    if (made.ok()) fail_msg("%s was accepted", text.c_str());
    if (made.status().message().find(part) == std::string::npos)
        fail_msg("%s: \"%s\" lacks \"%s\"", text.c_str(), made.status().message().c_str(),
                 part.c_str());
    assert_int_equal(made.status().code(), code);
}

void automata_of_one_language_are_equal(void **) {
    assert_true(must_compile("(a|b)*") == must_compile("(b*a*)*"));
    assert_true(must_compile("a(b|c)|ab") == must_compile("a[bc]"));
    assert_false(must_compile("a*") == must_compile("a+"));
    Budget budget;
    const Automaton few = Automaton::strings({"b", "abc", "ab", "b", ""}, &budget).value();
    assert_true(few == must_compile("|b|abc?"));
    const auto listed = few.enumerate(4);
    assert_true(listed.ok() && *listed == std::vector<std::string>({"", "ab", "abc", "b"}));
    assert_false(few.enumerate(3).ok());
    assert_true(few.finite() && few.greatest_bytes() == 3 && few.least_bytes() == 0);
    assert_false(must_compile("ab*").finite());
    assert_true(must_compile("a^b").empty());
}

// Checks operations by which sets a text is in.
void operations_do_what_sets_do(void **) {
    std::mt19937_64 random(seed_of_run());
    const char *expressions[] = {"(ab|b)*", "a{2,5}", "[ab]*b[ab]", "\xC3\xA9?a*",
                                 ".b.",     "",       "(a|b){3}"};
    std::vector<Automaton> automata;
    for (const char *text : expressions) automata.push_back(must_compile(text));
    automata.emplace_back();
    const std::string pieces[] = {"a", "b", "\xC3\xA9", "\xC3", "c"};
    for (const Automaton &a : automata) {
        for (const Automaton &b : automata) {
            Budget budget;
            const Automaton both = intersect(a, b, &budget).value();
            const Automaton either = unite(a, b, &budget).value();
            const Automaton less = subtract(a, b, &budget).value();
            const Automaton other = complement(a, &budget).value();
            const Automaton joined = concat(a, b, &budget).value();
            assert_true(included(both, a, &budget).value() && included(less, a, &budget).value());
            assert_true(unite(both, less, &budget).value() == a);
            assert_true(intersect(joined, complement(joined, &budget).value(), &budget)->empty());
            for (int32_t i = 0; i < 50; ++i) {
                std::string text;
                for (size_t n = random() % 6; n > 0; --n) text += pieces[random() % 5];
                const bool in_a = a.matches(text);
                const bool in_b = b.matches(text);
                assert_true(both.matches(text) == (in_a && in_b));
                assert_true(either.matches(text) == (in_a || in_b));
                assert_true(less.matches(text) == (in_a && !in_b));
                assert_true(other.matches(text) == (!in_a && Automaton::any_text().matches(text)));
                bool split = false;
                for (size_t at = 0; at <= text.size(); ++at)
                    split |= a.matches(text.substr(0, at)) && b.matches(text.substr(at));
                assert_true(joined.matches(text) == split);
            }
        }
    }
}

void characters_are_code_points(void **) {
    assert_true(must_compile(".").matches("\xF0\x9F\x98\x80"));
    assert_false(must_compile("..").matches("\xC3\xA9"));
    assert_false(must_compile("[^a]").matches("\xC3"));
    assert_false(must_compile(".").matches("\xED\xA0\x80")); // a surrogate
    assert_true(must_compile("\\p{Lu}\\p{Ll}+").matches("\xC3\x89t\xC3\xA9"));
    assert_true(must_compile("[^\\P{Nd}]").matches("\xD9\xA3"));
    assert_true(must_compile("\\uD83D\\uDE00", RegexDialect::ecma).matches("x\xF0\x9F\x98\x80y"));
    assert_true(must_compile("(?i)stra\xC3\x9F"
                             "e")
                    .matches("STRA\xC3\x9F"
                             "E"));
    // Each code point of a range, and its neighbours.
    const Automaton range = Automaton::code_points(0x7F0, 0x10010);
    for (const auto &[text, in] :
         std::vector<std::pair<std::string, bool>>{{"\xDF\xAF", false},
                                                   {"\xDF\xB0", true},
                                                   {"\xE0\xA0\x80", true},
                                                   {"\xED\x9F\xBF", true},
                                                   {"\xEE\x80\x80", true},
                                                   {"\xF0\x90\x80\x90", true},
                                                   {"\xF0\x90\x80\x91", false},
                                                   {"a", false}})
        assert_true(range.matches(text) == in);
}

void lookaheads_are_decided(void **) {
    const Automaton password =
        must_compile("^(?=.*[A-Z])(?=.*\\d)[A-Za-z\\d]{4,}$", RegexDialect::ecma);
    assert_true(password.matches("abC1"));
    assert_false(password.matches("abc1"));
    assert_false(password.matches("aC1"));
    const Automaton no_admin = must_compile("^(?!admin$)[a-z]+$", RegexDialect::ecma);
    assert_true(no_admin.matches("admins") && !no_admin.matches("admin"));
    assert_true(must_compile("a(?=b)", RegexDialect::ecma).matches("xxab"));
    assert_false(must_compile("a(?!b)", RegexDialect::ecma).matches("xxab"));
}

void what_is_refused_is_named_with_its_place(void **) {
    constexpr auto python = RegexDialect::python;
    constexpr auto ecma = RegexDialect::ecma;
    constexpr int32_t unsupported = BATCHLLM_ERROR_UNSUPPORTED;
    constexpr int32_t invalid = BATCHLLM_ERROR_INVALID_ARGUMENT;
    must_refuse("\xC3\xA9(a)\\1", python, unsupported, "character 5: a back-reference");
    must_refuse("(?<=a)b", ecma, unsupported, "character 1: lookbehind");
    must_refuse("(?P<n>a)(?P=n)", python, unsupported, "character 9: a back-reference");
    must_refuse("a(?>b)", python, unsupported, "an atomic group");
    must_refuse("a*+", python, unsupported, "a possessive count");
    must_refuse("(?m)^a", python, unsupported, "the flag m");
    must_refuse("(?:(?=a)a)*", python, unsupported, "a lookahead inside a repetition");
    must_refuse("\\p{Klingon}", ecma, unsupported, "Klingon");
    must_refuse("a\\Z", ecma, invalid, "character 2: no such escape");
    must_refuse("(a", python, invalid, "character 1: a ( without its )");
    must_refuse("a)", python, invalid, "character 2: a ) without its (");
    must_refuse("[b-a]", python, invalid, "a range that ends before its start");
    must_refuse("[\\w-.]", python, invalid, "character 4: a range from a class");
    must_refuse("[a-\\d]", python, invalid, "a range to a class");
    must_refuse("*a", ecma, invalid, "character 1: nothing to repeat");
    must_refuse("\xFF", ecma, invalid, "UTF-8");
}

void a_dash_beside_a_class_is_literal_in_ecma(void **) {
    for (const char *text : {"^[\\w-.]$", "^[.-\\w]$"}) {
        const Automaton made = must_compile(text, RegexDialect::ecma);
        for (const char *in : {"a", "-", "."}) assert_true(made.matches(in));
        for (const char *out : {"/", " ", "a-"}) assert_false(made.matches(out));
    }
}

void long_expressions_are_read_in_linear_time(void **) {
    assert_true(takes_linear_time(3'750, [](int bytes) {
        std::string groups;
        while (groups.size() < static_cast<size_t>(bytes)) groups += "(a?)";
        parse_regex(groups, {}).value();
    }));
    assert_true(takes_linear_time(3'750, [](int bytes) {
        const RegexTree read =
            parse_regex(std::string(static_cast<size_t>(bytes), 'a'), {}).value();
        assert_int_equal(read.nodes.back().children.size(), bytes);
    }));
    must_refuse(std::string(250'000, 'a'), RegexDialect::python, BATCHLLM_ERROR_UNSUPPORTED,
                "64 KiB");
}

void hostile_expressions_end_soon(void **) {
    const double seconds = processor_seconds(1, [] {
        for (const char *text :
             {"[ab]*a[ab]{30}", "(a{1000}){1000}", "(){1000000000}", "((a?){100}){100}",
              "(\\p{L}{1,50}\\d?){1,50}", "(.*a){30}.*b.{20}"})
            must_refuse(text, RegexDialect::python, BATCHLLM_ERROR_UNSUPPORTED, "too large");
        must_refuse(std::string(1000, '('), RegexDialect::python, BATCHLLM_ERROR_UNSUPPORTED,
                    "200 deep");
        must_compile("(a|a)*(a|aa)*(((a*)*)*)*b");
    });
    assert_true(seconds < 200); // two without sanitizers
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(automata_of_one_language_are_equal),
        cmocka_unit_test(operations_do_what_sets_do),
        cmocka_unit_test(characters_are_code_points),
        cmocka_unit_test(lookaheads_are_decided),
        cmocka_unit_test(what_is_refused_is_named_with_its_place),
        cmocka_unit_test(a_dash_beside_a_class_is_literal_in_ecma),
        cmocka_unit_test(long_expressions_are_read_in_linear_time),
        cmocka_unit_test(hostile_expressions_end_soon),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
