// GBNF: what grammars accept and reject, and errors with their places.
#include <memory>

#include "constraint/constraint.h"
#include "constraint/gbnf.h"
#include "constraint_reference.h"
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
    const auto parsed = parse_gbnf(grammar, &budget);
    if (!parsed.ok()) fail_msg("%s", parsed.status().message().c_str());
    const auto constraint = Constraint::make(*parsed, bytes_only(), {});
    if (!constraint.ok()) fail_msg("%s", constraint.status().message().c_str());
    ConstraintState state(*constraint);
    return state.advance_bytes(text).ok() && state.complete();
}

void must_fail(const std::string &grammar, int32_t code, const std::string &part) {
    Budget budget;
    const auto parsed = parse_gbnf(grammar, &budget);
    Status status =
        parsed.ok() ? Constraint::make(*parsed, bytes_only(), {}).status() : parsed.status();
    if (status.ok()) fail_msg("%s was accepted", grammar.c_str());
    if (status.message().find(part) == std::string::npos)
        fail_msg("\"%s\" lacks \"%s\"", status.message().c_str(), part.c_str());
    assert_int_equal(status.code(), code);
}

constexpr char json[] = R"(# JSON with space after its marks.
root    ::= map
any     ::= map | list | text | ("true" | "false" | "null")
  | amount
map     ::= "{" gap (pair ("," gap pair)*)? "}"
pair    ::= text ":" gap any
list    ::=
  "[" gap (
    any ("," gap any)*
  )? "]"
text    ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\""  # escapes
amount  ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,3})?
gap     ::= | " " | "\n" [ \t]{0,20}
)";

void a_grammar_of_json_is_read(void **) {
    for (const char *text :
         {"{}", "{\"a\":1}", "{ \"a\": [1, 2.5e3, {\"b\": null}], \"\xC3\xA9\": \"\\u00e9\\n\"}"})
        if (!takes(json, text)) fail_msg("refuses %s", text);
    for (const char *text :
         {"", "[]", "{\"a\":01}", "{\"a\":1,}", "{\"a\" :1}", "{\"\n\":1}", "{\"a\":tru}"})
        if (takes(json, text)) fail_msg("takes %s", text);
}

void every_form_means_what_it_should(void **) {
    assert_true(takes("root ::= \"a\" | \"b\"\n  | \"c\"\n", "c"));
    assert_true(takes("root ::= [a-c-]{2,3}", "-a-"));
    assert_false(takes("root ::= [a-c]{2,3}", "a"));
    assert_false(takes("root ::= [a-c]{2,3}", "aaaa"));
    assert_true(takes("root ::= [^a]", "\xE2\x82\xAC"));
    assert_false(takes("root ::= [^\\u20AC]", "\xE2\x82\xAC"));
    assert_true(takes("root ::= . \"\\x41\\U0001F600\"", "\nA\xF0\x9F\x98\x80"));
    assert_true(takes("root ::= x{3} x{0,} # twice\nx ::= \"ab\"?\n", "abab"));
    assert_true(takes("root ::= a-b_c1\r\na-b_c1 ::= \"q\"+", "qq"));
    // Right, middle and left recursion.
    assert_true(takes("root ::= \"(\" root \")\" | \"\"", "(((())))"));
    assert_false(takes("root ::= \"(\" root \")\" | \"\"", "(((()))"));
    assert_true(takes("root ::= root \"+\" [0-9] | root \"-\" [0-9] | [0-9]", "1+2-3"));
    assert_false(takes("root ::= root \"+\" [0-9] | [0-9]", "1+"));
    assert_false(takes("root ::= root \"+\" [0-9] | [0-9]", "+1"));
}

void errors_have_line_and_column(void **) {
    constexpr int32_t invalid = BATCHLLM_ERROR_INVALID_ARGUMENT;
    constexpr int32_t unsupported = BATCHLLM_ERROR_UNSUPPORTED;
    must_fail("", invalid, "no rule \"root\"");
    must_fail("root = \"a\"", invalid, "line 1, column 6: ::= is missing");
    must_fail("root ::= \"a\"\nx ::= \"b", invalid, "line 2, column 7: a quotation mark");
    must_fail("root ::= \"a\" missing", invalid, "line 1, column 14: the rule \"missing\"");
    must_fail("root ::= \"a\"\nroot ::= \"b\"", invalid,
              "line 2, column 1: the rule \"root\" is defined twice");
    must_fail("root ::= (\"a\"", invalid, "a ( without its )");
    must_fail("root ::= \"a\")", invalid, "column 13");
    must_fail("root ::= [z-a]", invalid, "a range that ends before its start");
    must_fail("root ::= \"a\"{3,2}", invalid, "a count whose end");
    must_fail("root ::= * \"a\"", invalid, "nothing to repeat");
    must_fail("root ::= \"\\q\"", invalid, "column 11: no such escape");
    must_fail("root ::= \"\\uD800\"", invalid, "no such code point");
    must_fail("root ::= \xFF", invalid, "UTF-8");
    must_fail("root ::= <think>", unsupported, "a token by name");
    must_fail("root ::= a \"x\" | \"y\"\na ::= root \"z\" | \"w\"", unsupported,
              "begins with itself");
    must_fail("root ::= \"a\" root", unsupported, "allows no text");
    must_fail("root ::= " + std::string(300, '(') + "\"a\"" + std::string(300, ')'), unsupported,
              "200 deep");
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(a_grammar_of_json_is_read),
        cmocka_unit_test(every_form_means_what_it_should),
        cmocka_unit_test(errors_have_line_and_column),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
