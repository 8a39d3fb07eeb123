// The length of a grammar's shortest text, against the texts themselves.
#include "constraint/gbnf.h"
#include "constraint/json_schema/json_schema.h"
#include "constraint/least_bytes.h"
#include "testing.h"

using namespace batchllm;

namespace {

int64_t of_gbnf(const std::string &text) {
    Budget budget;
    const auto parsed = parse_gbnf(text, &budget);
    if (!parsed.ok()) fail_msg("%s", parsed.status().message().c_str());
    return least_bytes(*parsed);
}

void a_text_is_as_long_as_its_shortest_parts(void **) {
    assert_int_equal(of_gbnf("root ::= \"abc\" [0-9]{3,5} \"x\"?"), 6);
    assert_int_equal(of_gbnf("root ::= \"long\" | a | \"\\u00e9\"\na ::= \"abc\""), 2);
    assert_int_equal(of_gbnf("root ::= (\"ab\" | \"c\"){4} \"d\"*"), 4);
    assert_int_equal(of_gbnf("root ::= \"\""), 0);
}

void a_rule_within_itself_ends_somewhere(void **) {
    assert_int_equal(of_gbnf("root ::= \"(\" root \")\" | \"x\""), 1);
    assert_int_equal(of_gbnf("root ::= a\na ::= \"[\" b \"]\"\nb ::= a | \"12345\""), 7);
    // Each rule refers to the next one twice: 2^20 letters.
    std::string doubled;
    for (int32_t i = 0; i < 20; ++i) {
        const std::string name = i == 0 ? "root" : "r" + std::to_string(i);
        doubled += name + " ::= r" + std::to_string(i + 1) + " r" + std::to_string(i + 1) + "\n";
    }
    assert_int_equal(of_gbnf(doubled + "r20 ::= \"x\""), 1 << 20);
}

void members_that_are_needed_count(void **) {
    Grammar grammar;
    Members members;
    for (const char *text : {"aaaa", "b", "ccc", "dd"})
        members.elements.push_back({grammar.bytes(text), text[0] == 'a'});
    members.separator = grammar.bytes(", ");
    members.rest = grammar.bytes("ee");
    const auto with_least = [&](int64_t least) {
        members.least = least;
        grammar.set_root(grammar.members(members));
        return least_bytes(grammar);
    };
    assert_int_equal(with_least(0), 4);                      // aaaa
    assert_int_equal(with_least(2), 4 + 2 + 1);              // aaaa, b
    assert_int_equal(with_least(3), 4 + 2 + 1 + 2 + 2);      // aaaa, b, dd or ee
    assert_int_equal(with_least(6), 4 + 1 + 2 + 2 * 3 + 10); // and three ee
    members.rest = kNoNode;
    assert_int_equal(with_least(4), 4 + 1 + 2 + 3 + 6);
}

void a_schema_has_the_bytes_of_its_smallest_object(void **) {
    const auto of_schema = [](const char *text) {
        Budget budget;
        const auto made = compile_json_schema(text, JsonSchemaOptions(), &budget);
        if (!made.ok()) fail_msg("%s", made.status().message().c_str());
        return least_bytes(made->grammar);
    };
    assert_int_equal(of_schema(R"({"type": "object", "properties": {"a": {"enum": ["red", "blue"]},
        "b": {"type": "array", "items": {"type": "integer"}, "minItems": 2}, "c": {"type": "null"}},
        "required": ["a", "b"], "additionalProperties": false})"),
                     int64_t{sizeof R"({"a":"red","b":[0,0]})" - 1});
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(a_text_is_as_long_as_its_shortest_parts),
        cmocka_unit_test(a_rule_within_itself_ends_somewhere),
        cmocka_unit_test(members_that_are_needed_count),
        cmocka_unit_test(a_schema_has_the_bytes_of_its_smallest_object),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
