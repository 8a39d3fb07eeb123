// What regular expressions find; tests/text/fuzz_split.py compares them with the reference.
#include <string>
#include <vector>

#include "processor_time.h"
#include "testing.h"
#include "text/regex/matcher.h"

using namespace batchllm;

namespace {

RegexMatcher must_make(const std::string &expression) {
    Result<RegexMatcher> made = RegexMatcher::make(expression);
    if (!made.ok()) fail_msg("%s: %s", expression.c_str(), made.status().message().c_str());
    return std::move(made).value();
}

// All matches, each in brackets.
std::string marked(const std::string &expression, const std::string &text) {
    const RegexMatcher matcher = must_make(expression);
    std::string out;
    size_t done = 0;
    while (const auto match = matcher.find(text, done)) {
        out += text.substr(done, match->begin - done) + "[" +
               text.substr(match->begin, match->end - match->begin) + "]";
        done = match->end;
    }
    return out + text.substr(done);
}

void check(const std::string &expression, const std::string &text, const std::string &wanted) {
    const std::string found = marked(expression, text);
    if (found != wanted)
        fail_msg("%s: \"%s\", not \"%s\"", expression.c_str(), found.c_str(), wanted.c_str());
}

void the_first_alternative_that_leads_to_a_match_counts(void **) {
    check("a|ab", "abab", "[a]b[a]b");
    check("ab|a", "abab", "[ab][ab]");
    check("(?:a|ab)c", "abc", "[abc]");
    check("(?:a|ab)(?:bc|c)", "abc", "[abc]");
}

void counts_take_as_much_or_as_little_as_they_can(void **) {
    check("a+b?", "aab", "[aab]");
    check("a+?", "aaa", "[a][a][a]");
    check("a+?b", "aaab", "[aaab]");
    check("a{2,3}", "aaaaa", "[aaa][aa]");
    check("a{2,3}?", "aaaaa", "[aa][aa]a");
    check("a{,2}b", "aaab", "a[aab]");
    check("(?:ab){2}", "ababab", "[abab]ab");
    check("a{2}+", "aaaaa", "[aaaa]a"); // a count of a count
    check("a{2}?b", "aab b", "[aab] [b]");
    check("a{2,2}?b", "aab b", "[aab] b");
    check("a?"
          "?+b",
          "ab", "[ab]"); // lazy ones, repeated
    check("a+?+b", "aab", "[aab]");
    check("b(?#\\)(a)", "ba", "[b]a");
    check("(?:a|b)*c", "abac", "[abac]");
    check("(?:a?"
          "?)*b",
          "aab", "[aab]");
}

void what_is_possessive_or_atomic_gives_nothing_back(void **) {
    check("a++a", "aaa", "aaa");
    check("a?+a", "aa", "[aa]");
    check("(?>ab|a)b", "abb ab", "[abb] ab");
    check("(?:ab)*+a", "ababa", "[ababa]");
}

void what_is_beside_is_seen_and_not_taken(void **) {
    check("\\s+(?!\\S)|\\s+", "a   b ", "a[  ][ ]b[ ]");
    check("\\d{1,3}(?=(?:\\d{3})*\\b)", "1234567", "[1][234][567]");
    check("(?=\\d{3})", "12345",
          "1[]2[]345"); // not at the start: no match there can be told from none
    check("a(?!b|c)", "ab ac ad", "ab ac [a]d");
}

void places_are_lines_words_and_ends(void **) {
    check("^.", "ab\ncd\n", "[a]b\n[c]d\n");
    check("^", "a\nb\n", "a\n[]b\n");
    check(".$", "ab\ncd", "a[b]\nc[d]");
    check("\\A.|.\\z", "ab\ncd", "[a]b\nc[d]");
    check(".\\Z", "ab\n", "a[b]\n");
    check(".\\Z", "a\nb\n", "a\n[b]\n");
    check("\\b\\w", "ab cd", "[a]b [c]d");
    check("\\B.", "ab\u00b2 c", "a[b][\u00b2] c");
    check("\\w+", "a\u00b2\u200cb", "[a\u00b2]\u200c[b]");
    check("[\\w]+", "a\u00b2\u200cb", "[a]\u00b2\u200c[b]");
    check("(?m:a.)b", "a\nb", "[a\nb]");
    check("a.b", "a\nb", "a\nb");
}

void classes_are_those_of_unicode_and_of_other_classes(void **) {
    check("[\\p{L}&&[^a-c]]+", "abd\u00e9\u4e2d1", "ab[d\u00e9\u4e2d]1");
    check("[a-z&&[^s]\\d]", "as1", "[a]s1");
    check("[[a-c]x-]+", "ax-d", "[ax-]d");
    check("[^\\p{N}\\s]+", "a1 b", "[a]1 [b]");
    check("\\p{Han}+", "a\u4e2d\u6587\u3042", "a[\u4e2d\u6587]\u3042");
    check("\\p{^Han}", "\u4e2da", "\u4e2d[a]");
    check("\\p{uppercase letter}\\P{Lu}", "aBc", "a[Bc]");
    check("\\h+", "fFg", "[fF]g");
    check("\\x41\\u0042\\x{4e2d}", "AB\u4e2d", "[AB\u4e2d]");
    check("(?i:'s)", "'s'S'\u017f", "['s]['S]['\u017f]");
    check("(?i)k", "kK\u212a", "[k][K][\u212a]");
    check("(?i:[a&&A])", "aA", "aA");
    check("(?i:\\p{Lu})", "aA", "a[A]"); // alone it is as it is
    check("[a-&&\\W]", "a-", "a[-]");
    check("[:;]", "a:;", "a[:][;]");
}

void an_empty_match_where_the_last_one_ended_is_none(void **) {
    check("b*", "abba", "a[bb]a[]");
    assert_true(must_make("b*").may_be_empty());
    assert_false(must_make("b*a").may_be_empty());
    assert_false(must_make("b*").find("", 0).has_value());
}

void what_would_match_something_else_is_refused(void **) {
    const std::pair<const char *, const char *> cases[] = {
        {"(?<=a)b", "character 1: lookbehind is not supported"},
        {"(?<!a)b", "lookbehind"},
        {"(a)\\1", "a back-reference"},
        {"[[:alpha:]]", "a POSIX bracket"},
        {"[]a]", "an empty class"},
        {"[a&&]", "an empty class"},
        {"[a", "a [ without its ]"},
        {"(a", "a ( without its )"},
        {"a)", "a ) without its ("},
        {"*a", "nothing to repeat"},
        {"a(?i)b", "flags for the rest of a group"},
        {"(?x)a", "the flag x"},
        {"\\p{Klingon}", "the property \"Klingon\""},
        {"\\p{punct}", "the property"},
        {"(?i:stra\u00dfe)", "(?i)"},
        {"(?i:first)", "(?i) of letters that one character stands for"},
        {"(?i:s(?:s))", "(?i) of letters that one character stands for"},
        {"(?i:\\x73s)", "(?i) of letters that one character stands for"},
        {"(?i:(?:f){1}(?#c)i)", "(?i) of letters that one character stands for"},
        {"(?i:\u2167)", "(?i) of other characters than ASCII's"},
        {"(?i:[^[^a]b])", "(?i) of other characters than ASCII's"},
        {"a{1}{1}{1}{1}{1}{1}{1}{1}{1}{1}{1}{1}{1}{1}{1}{1}{1}", "more than 16 counts in a row"},
        {"(?i:[\\w-])", "(?i) of other characters than ASCII's"},
        {"(?i:i\u0307)", "(?i) of other characters than ASCII's"},
        {"\\R", "\\R is not supported"},
        {"\\xe9", "a byte of a character"},
        {"(?:a|){3}", "a count of what may match the empty text"},
        {"(?:(?:a{1,9}b){500}){500}", "the expression is too large"},
        {"(?:\\b|){100000000}", "a count"},
    };
    for (const auto &[expression, words] : cases) {
        const Result<RegexMatcher> made = RegexMatcher::make(expression);
        if (made.ok()) fail_msg("%s was accepted", expression);
        if (made.status().message().find(words) == std::string::npos)
            fail_msg("%s: %s", expression, made.status().message().c_str());
    }
}

// Each of them takes exponential or high polynomial time by plain backtracking.
void an_expression_that_tries_again_and_again_ends_soon(void **) {
    for (const char *expression : {"(?:a|aa)+b", "(?:a+)+b", "(?:a*)*b", "a*a*a*a*a*a*b",
                                   "(?:a?){1}(?:a|b|ab)*c", "(?=(?:a+)+b)a"}) {
        const RegexMatcher matcher = must_make(std::string("\\A(?:") + expression + ")");
        const std::string text(2000, 'a');
        assert_false(matcher.find(text, 0).has_value());
    }
}

void what_was_part_of_a_match_is_not_remembered_as_failed(void **) {
    const std::string text(300, 'a');
    check("(?:(?=(?:q|r|a)+b)a)+b", text + "b", "[" + text + "b]");
}

void long_texts_take_linear_time(void **) {
    const RegexMatcher starts = must_make("(?:a|aa)+b");
    const RegexMatcher atomic = must_make("(?:(?>(?:q|r|s|t|u|v|w|x|a)))*Q");
    const RegexMatcher words = must_make(
        "[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+|.");
    const RegexMatcher ends = must_make("\\s+$");
    const auto all = [](const RegexMatcher &matcher, const std::string &text) {
        size_t at = 0;
        while (const auto match = matcher.find(text, at)) at = match->end;
    };
    assert_true(takes_linear_time(
        2000, [&](int size) { all(words, std::string(static_cast<size_t>(size), 'a')); }));
    assert_true(takes_linear_time(
        2000, [&](int size) { all(words, std::string(static_cast<size_t>(size), ' ') + "a"); }));
    assert_true(takes_linear_time(
        2000, [&](int size) { all(ends, std::string(static_cast<size_t>(size), ' ') + "a"); }));
    for (const RegexMatcher *again : {&starts, &atomic}) {
        assert_true(takes_linear_time(
            2000, [&](int size) { all(*again, std::string(static_cast<size_t>(size), 'a')); }));
    }
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(the_first_alternative_that_leads_to_a_match_counts),
        cmocka_unit_test(counts_take_as_much_or_as_little_as_they_can),
        cmocka_unit_test(what_is_possessive_or_atomic_gives_nothing_back),
        cmocka_unit_test(what_is_beside_is_seen_and_not_taken),
        cmocka_unit_test(places_are_lines_words_and_ends),
        cmocka_unit_test(classes_are_those_of_unicode_and_of_other_classes),
        cmocka_unit_test(an_empty_match_where_the_last_one_ended_is_none),
        cmocka_unit_test(what_would_match_something_else_is_refused),
        cmocka_unit_test(an_expression_that_tries_again_and_again_ends_soon),
        cmocka_unit_test(what_was_part_of_a_match_is_not_remembered_as_failed),
        cmocka_unit_test(long_texts_take_linear_time),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
