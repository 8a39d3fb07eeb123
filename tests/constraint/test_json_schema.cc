// JSON schemas as grammars: which texts they accept, what is rejected and how it is named, and what
// is widened.
#include <algorithm>
#include <memory>

#include "constraint/grammar_code.h"
#include "constraint/json_schema/format.h"
#include "constraint/json_schema/json_schema.h"
#include "constraint/state_graph.h"
#include "processor_time.h"
#include "testing.h"

using namespace batchllm;

namespace {

using Options = JsonSchemaOptions;
using Texts = std::vector<std::string>;

Result<std::unique_ptr<StateGraph>> compiled(const std::string &schema,
                                             const Options &options = {}) {
    Budget budget;
    ASSIGN_OR_RETURN(const JsonSchemaGrammar grammar,
                     compile_json_schema(schema, options, &budget));
    bool usable[256];
    std::fill(std::begin(usable), std::end(usable), true);
    ASSIGN_OR_RETURN(GrammarCode code, GrammarCode::compile(grammar.grammar, usable, &budget));
    return std::make_unique<StateGraph>(std::make_shared<const GrammarCode>(std::move(code)), 64,
                                        64);
}

bool takes(StateGraph *graph, const std::string &text) {
    GraphState *state = graph->start();
    for (const char byte : text) {
        state = graph->next(state, static_cast<uint8_t>(byte));
        if (state == nullptr) return false;
    }
    return state->complete;
}

void check(const std::string &schema, const Texts &valid, const Texts &invalid,
           const Options &options = {}) {
    const auto graph = compiled(schema, options);
    if (!graph.ok()) {
        print_error("%s\n  %s\n", schema.c_str(), graph.status().message().c_str());
        assert_true(graph.ok());
        return;
    }
    for (const std::string &text : valid) {
        if (!takes(graph->get(), text)) print_error("%s\n  %s\n", schema.c_str(), text.c_str());
        assert_true(takes(graph->get(), text));
    }
    for (const std::string &text : invalid) {
        if (takes(graph->get(), text)) print_error("%s\n  %s\n", schema.c_str(), text.c_str());
        assert_false(takes(graph->get(), text));
    }
}

void check_refused(const std::string &schema, const std::string &place, int32_t code) {
    const auto graph = compiled(schema);
    assert_false(graph.ok());
    if (graph.status().message().find(place) == std::string::npos) {
        print_error("%s\n  %s\n", schema.c_str(), graph.status().message().c_str());
    }
    assert_true(graph.status().message().find(place) != std::string::npos);
    assert_int_equal(graph.status().code(), code);
}

void types_take_their_values_alone(void **) {
    check(R"({"type": "integer"})", {"0", "-7", "12", "1.0", "1e16", "1.5e+17"},
          {"1.5", "01", "1.", "\"1\"", "1e-2", "null", ""});
    check(R"({"type": "number"})", {"0", "-0.5", "1e5", "12.50E-3"}, {"01", ".5", "+1", "NaN"});
    check(R"({"type": ["null", "boolean"]})", {"null", "true", "false"}, {"0", "\"\"", "nul"});
    check("true", {"{\"a\":[1,{\"b\":null}]}", "\"x\"", "-1e9", "[]", "{}"}, {"", "[1,]", "{a:1}"});
    check(R"({"enum": [1, "a", null, {"x": [2]}]})", {"1", "1.0", "\"a\"", "null", "{\"x\":[2]}"},
          {"2", "\"b\"", "{\"x\":[3]}", "{\"x\":[2],\"y\":1}", "{}"});
}

void numbers_keep_exact_bounds(void **) {
    check(R"({"type": "number", "minimum": 0.1, "exclusiveMaximum": 12.5})",
          {"0.1", "0.10000000000000000000001", "12.4999", "1.2e1", "1e-1"},
          {"0.09999999999999999999", "12.5", "12.50", "-1", "1e-2", "1.25e1", "1e9"});
    check(R"({"type": "integer", "minimum": -3, "maximum": 120})", {"-3", "0", "-0", "120", "7.0"},
          {"-4", "121", "120.5", "1200"});
    check(R"({"multipleOf": 0.25, "maximum": 2})", {"0.25", "1.5", "2", "-7.75", "\"text\""},
          {"0.3", "2.25", "0.125"});
    check(R"({"type": "integer", "multipleOf": 7, "minimum": 98765432109876543210})",
          {"98765432109876543214"}, {"98765432109876543207", "98765432109876543215"});
    check(R"({"const": 100})", {"100", "100.0"}, {"1e2", "100.00", "1000", "10"});
    check(R"({"type": "number", "not": {"type": "integer"}})", {"0.5", "1e-7", "-3.25"},
          {"1", "1.0", "0", "1e20"});
    Options plain;
    plain.numbers = NumberStyle::plain;
    check(R"({"type": "integer"})", {"5", "-5"}, {"5.0", "1e16"}, plain);
}

void strings_are_matched_as_they_decode(void **) {
    check(R"({"type": "string"})", {R"("a\u00e9\n\ud83d\ude00/\/")", "\"é\""},
          {R"("\ud800")", R"("\x")", "\"\n\"", "\"a"});
    check(R"({"pattern": "^a.b$"})", {R"("a\"b")", R"("aéb")", R"("a\u0001b")", "1"},
          {R"("a\nb")", R"("ab")", R"("a\u0041b")"});
    check(R"({"type": "string", "minLength": 2, "maxLength": 3})",
          {R"("ab")", R"("日本語")", R"("\ud83d\ude00\n")"},
          {R"("a")", R"("abcd")", R"("\ud83d\ude00")"});
    check(R"({"type": "string", "pattern": "^[a-z]*$", "maxLength": 3, "minLength": 1})",
          {R"("a")", R"("abc")"}, {R"("")", R"("abcd")", R"("A")"});
    check(R"({"not": {"pattern": "a"}, "type": "string"})", {R"("xyz")", R"("")"}, {R"("xaz")"});
    check(R"({"type": "string", "maxLength": 1000000})", {"\"" + std::string(5000, 'x') + "\""},
          {"\"a\"b"});
}

void formats_are_enforced_unless_told_otherwise(void **) {
    check(R"({"format": "date"})", {"\"2024-02-29\"", "1"}, {"\"2023-02-29\"", "\"2024-13-01\""});
    check(R"({"format": "date-time"})",
          {"\"2024-02-29T23:59:60Z\"", "\"2000-01-01t00:00:00.5+05:30\""},
          {"\"2024-02-29 10:00:00Z\"", "\"2024-02-29T24:00:00Z\""});
    check(R"({"format": "ipv6"})", {"\"::1\"", "\"1::2:3.4.5.6\""}, {"\"1::2::3\"", "\"12345::\""});
    check(R"({"format": "hostname"})", {"\"a-b.example\""}, {"\"-a\"", "\"a..b\"", "\"xn--zca\""});
    Options annotations;
    annotations.formats = false;
    check(R"({"format": "date"})", {"\"no date\""}, {}, annotations);
    for (const char *name : {"date", "time", "date-time", "duration", "uuid", "email", "hostname",
                             "ipv4", "ipv6", "uri", "uri-reference", "iri", "iri-reference",
                             "uri-template", "json-pointer", "relative-json-pointer"}) {
        assert_int_equal(format_kind(name), FormatKind::language);
        assert_false(format_automata(name).text.empty());
    }
}

void members_come_in_the_declared_order_and_once(void **) {
    const char *schema = R"({"type": "object", "required": ["b"], "properties":
        {"a": {"type": "integer"}, "b": {"type": "boolean"}}})";
    check(schema, {R"({"b":true})", R"({"a":1,"b":true})", R"({"a":1,"b":true,"c":"x","d":[]})"},
          {R"({"b":true,"a":1})", R"({"a":1})", R"({"a":1,"a":2,"b":true})", R"({"c":1,"b":true})",
           R"({"b":true,"\u0061":"x"})", R"({"b":true,"b":true})"});
    Options any;
    any.order = Members::Order::any;
    check(schema, {R"({"b":true,"a":1})", R"({"c":1,"b":true})"},
          {R"({"b":true,"a":1,"b":true})", R"({"a":1})"}, any);
    check(R"({"anyOf": [{"properties": {"k": {"const": 1}, "a": {}}, "required": ["k"]},
                        {"properties": {"b": {}, "k": {"const": 2}}, "required": ["k"]}], "type": "object"})",
          {R"({"k":1,"a":0})", R"({"b":0,"k":2})"}, {R"({"k":3})", R"({"a":0,"k":1})"});
}

void names_are_counted_and_matched(void **) {
    check(R"({"type": "object", "patternProperties": {"^x": {"type": "integer"}},
              "additionalProperties": false})",
          {"{}", R"({"x1":1,"x\"":2})"}, {R"({"x":"a"})", R"({"y":1})"});
    check(R"({"type": "object", "properties": {"xa": {"maximum": 5}},
              "patternProperties": {"^x": {"type": "integer"}}})",
          {R"({"xa":5})", R"({"y":"free"})"}, {R"({"xa":6})", R"({"xa":"a"})", R"({"xb":0.5})"});
    check(R"({"type": "object", "minProperties": 1, "maxProperties": 2})",
          {R"({"a":1})", R"({"a":1,"b":2})"}, {"{}", R"({"a":1,"b":2,"c":3})"});
    check(R"({"type": "object", "minProperties": 2, "additionalProperties": false,
              "patternProperties": {"^[abc]$": {}}})",
          {R"({"a":1,"b":2})"}, {R"({"a":1})", R"({"a":1,"a":2})"});
    check(R"({"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}})", {R"({"ab":1})"},
          {R"({"A":1})"});
    check_refused(R"({"properties": {"p": {"type": "object", "minProperties": 3}}})",
                  "#/properties/p/minProperties: ", BATCHLLM_ERROR_UNSUPPORTED);
}

void arrays_keep_places_counts_and_what_they_contain(void **) {
    check(R"({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}],
              "items": {"type": "null"}, "minItems": 1, "maxItems": 3})",
          {"[1]", "[1,\"a\"]", "[1,\"a\",null]"},
          {"[]", "[\"a\"]", "[1,2]", "[1,\"a\",null,null]"});
    check(R"({"$schema": "http://json-schema.org/draft-07/schema#", "type": "array",
              "items": [{"type": "integer"}], "additionalItems": false})",
          {"[]", "[1]"}, {"[1,2]", "[\"a\"]"});
    check(R"({"type": "array", "contains": {"const": 1}, "minContains": 2, "maxContains": 3})",
          {"[1,1]", "[0,1,null,1,2]", "[1,1,1,0]"}, {"[]", "[1]", "[1,1,1,1]", "[0,2]"});
    check(
        R"({"type": "array", "uniqueItems": true, "minItems": 2, "items": {"enum": ["a", 1, null]}})",
        {"[1,\"a\"]", "[null,1,\"a\"]"}, {"[1,1]", "[1,1.0]", "[1]", "[2,1]"});
    check(R"({"type": "array", "minItems": 3, "maxItems": 100000, "items": {"type": "integer"}})",
          {"[1,2,3]"}, {"[1,2]"});
    check_refused(R"({"items": {"uniqueItems": true, "type": "array"}})",
                  "#/items/uniqueItems: ", BATCHLLM_ERROR_UNSUPPORTED);
}

void branches_exclude_each_other(void **) {
    check(R"({"oneOf": [{"type": "integer"}, {"minimum": 2, "type": "number"}]})",
          {"1", "2.5", "-4"}, {"2", "3", "1.5"});
    check(R"({"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"})",
          {R"({"a":1})", R"({"c":0,"b":1})"}, {R"({"a":1,"b":1})", "{}"},
          Options{.order = Members::Order::any});
    check(R"({"type": "object", "properties": {"kind": {"enum": ["a", "b"]}, "n": {}},
              "if": {"properties": {"kind": {"const": "a"}}}, "then": {"properties": {"n": {"type": "integer"}}},
              "else": {"required": ["n"]}, "required": ["kind"]})",
          {R"({"kind":"a"})", R"({"kind":"a","n":1})", R"({"kind":"b","n":"x"})"},
          {R"({"kind":"a","n":"x"})", R"({"kind":"b"})"});
    check(
        R"({"type": "object", "dependentRequired": {"a": ["b"]}, "dependentSchemas": {"c": {"maxProperties": 1}}})",
        {"{}", R"({"b":1})", R"({"a":1,"b":1})", R"({"c":1})"}, {R"({"a":1})", R"({"b":1,"c":1})"});
    check(R"({"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}], "type": "object",
              "unevaluatedProperties": false})",
          {R"({"a":1,"b":2})"}, {R"({"c":1})"});
    check(
        R"({"prefixItems": [{"type": "integer"}], "contains": {"type": "string"}, "unevaluatedItems": false,
              "type": "array"})",
        {"[1,\"a\"]", "[1,\"a\",\"b\"]"}, {"[1]", "[1,\"a\",2]"});
    check(
        R"({"not": {"type": "object", "additionalProperties": false, "properties": {"a": {"type": "null"}}},
              "type": "object"})",
        {R"({"a":1})", R"({"b":null})", R"({"a":null,"b":1})"}, {"{}", R"({"a":null})"});
}

void references_may_recurse(void **) {
    check(R"({"$defs": {"tree": {"type": "object", "additionalProperties": false, "required": ["v"],
              "properties": {"v": {"type": "integer"}, "c": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}}},
              "$ref": "#/$defs/tree"})",
          {R"({"v":1})", R"({"v":1,"c":[{"v":2,"c":[]},{"v":3}]})"},
          {R"({"v":1,"c":[{"v":"x"}]})", R"({"c":[]})"});
    check(R"({"$id": "http://e.org/root.json", "$ref": "item.json",
              "$defs": {"i": {"$id": "item.json", "$anchor": "here", "type": "string"}}})",
          {"\"a\""}, {"1"});
    check(
        R"({"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"s": {"type": "string"}},
              "$ref": "#/definitions/s", "maxLength": 1})",
        {"\"long\""}, {"1"});
    // The required member never ends; null does.
    check(
        R"({"anyOf": [{"type": "null"}, {"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#/$defs/n"}}}],
              "$defs": {"n": {"type": "object", "required": ["n"], "properties": {"n": {"$ref": "#/$defs/n"}}}}})",
        {"null"}, {"{\"a\":{}}", "{}"});
    check_refused(R"({"properties": {"a": {"$ref": "http://e.org/other.json"}}})",
                  "#/properties/a/$ref: ", BATCHLLM_ERROR_UNSUPPORTED);
    check_refused(R"({"allOf": [{"$ref": "#"}]})", "refers to itself",
                  BATCHLLM_ERROR_INVALID_ARGUMENT);
}

void whitespace_is_that_of_the_option(void **) {
    const char *schema =
        R"({"type": "object", "properties": {"a": {"type": "array"}}, "additionalProperties": false})";
    Options flexible;
    flexible.spacing = Options::Spacing::flexible;
    check(schema,
          {R"({"a":[1,2]})", R"({"a": [1, 2]})", "{\n  \"a\": [\n    1,\n    2\n  ]\n}", "{ }"},
          {" {}", "{}\n", "{\"a\" :[]}", "{\"a\":  []}"}, flexible);
    check(schema, {R"({"a":[1,2]})"}, {R"({"a": [1,2]})", R"({"a":[1, 2]})"});
}

void what_is_no_schema_is_named(void **) {
    check_refused("{\"type\": \"text\"}", "#/type: text is no type",
                  BATCHLLM_ERROR_INVALID_ARGUMENT);
    check_refused("[]", "#: a schema is", BATCHLLM_ERROR_INVALID_ARGUMENT);
    check_refused("{", "not JSON", BATCHLLM_ERROR_INVALID_ARGUMENT);
    check_refused("{\"a\": 1, \"a\": 2}", "the key \"a\" is given twice",
                  BATCHLLM_ERROR_INVALID_ARGUMENT);
    check_refused("{\"minLength\": -1}", "#/minLength: ", BATCHLLM_ERROR_INVALID_ARGUMENT);
    check_refused(R"({"properties": {"a/b": {"pattern": "("}}})",
                  "#/properties/a~1b/pattern: ", BATCHLLM_ERROR_INVALID_ARGUMENT);
    check_refused(R"({"type": "string", "enum": [1]})", "no value satisfies",
                  BATCHLLM_ERROR_INVALID_ARGUMENT);
    check_refused(R"({"$schema": "http://e.org/own"})", "#/$schema: ", BATCHLLM_ERROR_UNSUPPORTED);
}

void loose_widens_with_a_warning(void **) {
    Options loose;
    loose.loose = true;
    Budget budget;
    const auto grammar = compile_json_schema(
        R"({"type": "array", "uniqueItems": true, "items": {"type": "integer"}})", loose, &budget);
    assert_true(grammar.ok());
    assert_int_equal(grammar->warnings.size(), 1);
    assert_true(grammar->warnings[0].substr(0, 14) == "#/uniqueItems:");
    check(R"({"type": "array", "uniqueItems": true, "items": {"type": "integer"}})",
          {"[1,1]", "[1,2]"}, {"[\"a\"]"}, loose);
}

// Leaving something out of a negated schema must also widen it.
void loose_never_narrows(void **) {
    Options loose;
    loose.loose = true;
    check(R"({"not": {"propertyNames": {"minLength": 2, "pattern": "(?<=x)y"}}})",
          {R"({"a":1})", R"({"xy":1})", R"({"ab":1})"}, {}, loose);
    // Which names the pattern matches is not known, so all names count as matched, and as
    // evaluated.
    check(R"({"patternProperties": {"(a)\\1": {"type": "integer"}}, "additionalProperties": false,
              "properties": {"b": {"type": "string"}}, "required": ["b"]})",
          {R"({"b":"x","aa":1})", R"({"b":"x","c":null})"}, {R"({"b":1})", R"({"aa":1})"}, loose);
    check(R"({"patternProperties": {"(a)\\1": {}}, "unevaluatedProperties": false})",
          {R"({"aa":1})", R"({"b":1})"}, {}, loose);
    check(R"({"not": {"patternProperties": {"(a)\\1": {"type": "integer"}}}})",
          {R"({"aa":"x"})", R"({"b":1})"}, {"1", "\"x\""}, loose);
    check(R"({"$ref": "http://e.org/elsewhere", "unevaluatedProperties": false})", {R"({"a":1})"},
          {}, loose);
}

// More pairs of branches than are examined: one of the schemas is left out.
void loose_passes_over_alternatives_that_multiply(void **) {
    const auto branches = [](const char *prefix) {
        std::string text = R"({"anyOf": [)";
        for (int i = 0; i < 160; ++i) {
            const std::string name = prefix + std::to_string(i);
            text += (i > 0 ? ", " : "") + std::string(R"({"required": [")") + name + R"("]})";
        }
        return text + "]}";
    };
    const std::string schema =
        R"({"type": "object", "properties": {"n": {"type": "integer"}}, "allOf": [)" +
        branches("a") + ", " + branches("b") + "]}";
    check_refused(schema, "#/allOf/1: too many alternatives to tell apart",
                  BATCHLLM_ERROR_UNSUPPORTED);
    Options loose;
    loose.loose = true;
    check(schema, {R"({"n":1,"a7":1})", R"({"a7":1,"b8":1})"}, {"{}", R"({"n":"x","a7":1})", "[]"},
          loose);
    Budget budget;
    const auto grammar = compile_json_schema(schema, loose, &budget);
    assert_int_equal(grammar->warnings.size(), 1);
    assert_string_equal(grammar->warnings[0].c_str(),
                        "#/allOf/1: too many alternatives to tell apart");
}

void a_place_is_named_once_and_is_the_keywords_own(void **) {
    Options loose;
    loose.loose = true;
    Budget budget;
    for (const auto &[schema, keyword] :
         {std::pair{R"({"pattern": "(a)\\1"})", "#/pattern: "},
          std::pair{R"({"patternProperties": {"(a)\\1": {}}})", "#/patternProperties: "}}) {
        const auto grammar = compile_json_schema(schema, loose, &budget);
        assert_true(grammar.ok());
        assert_int_equal(grammar->warnings.size(), 1);
        const std::string &warning = grammar->warnings[0];
        assert_int_equal(warning.find(keyword), 0);
        assert_int_equal(warning.rfind("#/"), 0);
    }
    check_refused(R"({"pattern": "(a|b)*a(a|b){30}$", "maxLength": 1000000})",
                  "#/pattern: ", BATCHLLM_ERROR_UNSUPPORTED);
}

std::string repeated(const std::string &text, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) out += text;
    return out;
}

// Accepted or rejected, but quickly.
void hostile_schemas_end(void **) {
    std::string fan = R"({"$ref": "#/$defs/a0", "$defs": {)";
    for (int i = 0; i < 60; ++i) {
        const std::string next = "{\"$ref\": \"#/$defs/a" + std::to_string(i + 1) + "\"}";
        fan += "\"a" + std::to_string(i) + "\": {\"anyOf\": [" + next + ", {\"items\": " + next +
               "}]}, ";
    }
    fan += R"("a60": {"type": "array"}}})";
    std::string conditions = R"({"type": "object", "allOf": [)";
    for (int i = 0; i < 24; ++i) {
        const std::string n = std::to_string(i);
        conditions += (i > 0 ? ", " : "") + std::string("{\"if\": {\"required\": [\"k") + n +
                      "\"]}, \"then\": {\"required\": [\"v" + n + "\"]}}";
    }
    conditions += "]}";
    for (const std::string &schema :
         {repeated("{\"not\":", 150) + "{}" + repeated("}", 150), repeated("[", 1000000), fan,
          conditions, std::string(R"({"type": "array", "minItems": 90000, "maxItems": 1000000})"),
          std::string(R"({"contains": {"const": 1}, "minContains": 5000, "maxContains": 9000})"),
          std::string(R"({"pattern": "^((a{1,200}){1,200}){1,200}$"})"),
          std::string(R"({"pattern": "(a|b)*a(a|b){30}$", "maxLength": 1000000})"),
          "{\"properties\": {\"" + std::string(1000000, 'x') + "\": {}}}"}) {
        const double seconds = processor_seconds(1, [&] {
            const auto graph = compiled(schema);
            if (!graph.ok()) assert_true(graph.status().message().size() < 1000);
        });
        assert_true(seconds < 200); // ten with sanitizers
    }
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(types_take_their_values_alone),
        cmocka_unit_test(numbers_keep_exact_bounds),
        cmocka_unit_test(strings_are_matched_as_they_decode),
        cmocka_unit_test(formats_are_enforced_unless_told_otherwise),
        cmocka_unit_test(members_come_in_the_declared_order_and_once),
        cmocka_unit_test(names_are_counted_and_matched),
        cmocka_unit_test(arrays_keep_places_counts_and_what_they_contain),
        cmocka_unit_test(branches_exclude_each_other),
        cmocka_unit_test(references_may_recurse),
        cmocka_unit_test(whitespace_is_that_of_the_option),
        cmocka_unit_test(what_is_no_schema_is_named),
        cmocka_unit_test(loose_widens_with_a_warning),
        cmocka_unit_test(loose_never_narrows),
        cmocka_unit_test(loose_passes_over_alternatives_that_multiply),
        cmocka_unit_test(a_place_is_named_once_and_is_the_keywords_own),
        cmocka_unit_test(hostile_schemas_end),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
