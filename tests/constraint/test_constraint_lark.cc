// Lark: what grammars accept and reject, and errors with their places.
#include <memory>

#include "constraint/constraint.h"
#include "constraint/lark.h"
#include "testing.h"

using namespace batchllm;

namespace {

std::shared_ptr<const TokenVocabulary> bytes_only() {
    std::vector<std::string> tokens;
    for (int32_t byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
    const std::vector<uint8_t> special(tokens.size(), 0);
    return TokenVocabulary::make(tokens, special, {}).value();
}

bool takes(const std::string &grammar, std::string_view text) {
    Budget budget;
    const auto parsed = parse_lark(grammar, &budget);
    if (!parsed.ok()) fail_msg("%s", parsed.status().message().c_str());
    const auto constraint = Constraint::make(*parsed, bytes_only(), {});
    if (!constraint.ok()) fail_msg("%s", constraint.status().message().c_str());
    ConstraintState state(*constraint);
    return state.advance_bytes(text).ok() && state.complete();
}

void must_fail(const std::string &grammar, int32_t code, const std::string &part) {
    Budget budget;
    const auto parsed = parse_lark(grammar, &budget);
    if (parsed.ok()) fail_msg("%s was accepted", grammar.c_str());
    if (parsed.status().message().find(part) == std::string::npos)
        fail_msg("\"%s\" lacks \"%s\"", parsed.status().message().c_str(), part.c_str());
    assert_int_equal(parsed.status().code(), code);
}

constexpr char sums[] = R"lark(// Sums of products, with space anywhere between them.
start: sum
?sum: sum "+" product -> plus
    | sum "-" product
    | product
?product: product "*" atom | atom
atom.2: NUMBER | "(" sum ")" | NAME [ "!" ]
NAME: "a".."c" ("_" | DIGIT)~0..2
DIGIT: /[0-9]/
%import common.NUMBER
%ignore " "
)lark";

void a_grammar_of_sums_is_read(void **) {
    for (const char *text : {"1", "a+b", " 1.5 + ( c_0 * 2 ) - 3 ", "((a!))", "1e3"})
        if (!takes(sums, text)) fail_msg("refuses %s", text);
    for (const char *text : {"", "+", "1+", "a b", "d", "1 . 5", "(a", "c___"})
        if (takes(sums, text)) fail_msg("takes %s", text);
}

void every_form_means_what_it_should(void **) {
    assert_true(takes("start: \"Select\"i /[a-z]+/i ~2", "sELECTabcD"));
    assert_false(takes("start: \"Select\"", "select"));
    assert_true(takes("start: [\"a\"] (\"b\" | \"c\")+\n", "bcb"));
    assert_true(takes("start: A\nA: B | \"x\"\nB: \"y\" \"z\"*", "yzz"));
    assert_true(takes("start: /a\\/b/", "a/b"));
    assert_true(takes("%import common (INT, ESCAPED_STRING -> S)\nstart: INT S", "12\"a\\\"\""));
    assert_true(takes("start:\n  | \"a\"\n  | \"b\" # one of both\n", "b"));
}

void errors_have_line_and_column(void **) {
    constexpr int32_t invalid = BATCHLLM_ERROR_INVALID_ARGUMENT;
    constexpr int32_t unsupported = BATCHLLM_ERROR_UNSUPPORTED;
    must_fail("a: \"b\"", invalid, "no rule \"start\"");
    must_fail("start: missing", invalid, "line 1, column 8: \"missing\" is not defined");
    must_fail("start: A\nA: B\nB: \"x\" A", invalid, "is made of itself");
    must_fail("start: A\nA: b\nb: \"x\"", invalid, "line 2, column 4: a rule inside a terminal");
    must_fail("start: /(/", invalid, "line 1, column 8: in the expression, character 1");
    must_fail("start: /a(?<=b)/", unsupported, "lookbehind");
    must_fail("start: \"a\nb: \"c\"", invalid, "line 1, column 8: a quotation mark");
    must_fail("%declare X\nstart: X", unsupported, "line 1, column 1: %declare");
    must_fail("%import other.X\nstart: X", unsupported, "not from common");
    must_fail("%import common.NOPE\nstart: NOPE", unsupported, "\"NOPE\"");
    must_fail("start: x{\"a\"}", unsupported, "a template");
    must_fail("start: \"a\"..\"\"", invalid, "a range");
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(a_grammar_of_sums_is_read),
        cmocka_unit_test(every_form_means_what_it_should),
        cmocka_unit_test(errors_have_line_and_column),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
