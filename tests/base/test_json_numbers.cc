// Numbers of any size and shape in everything that reads JSON: what is a number is accepted, what is
// none is not, and a value is exact or refused.
#include <cmath>
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <unistd.h>
#include <vector>

#include "backend/sim/device_costs.h"
#include "base/file.h"
#include "base/json.h"
#include "base/json_tree.h"
#include "constraint/json_schema/document.h"
#include "json_numbers.h"
#include "model/model.h"
#include "model/safetensors.h"
#include "seed.h"
#include "text/chat_template.h"
#include "text/tokenizer_spec.h"

// Last: it defines fail() as a macro, which C++ headers use as a name.
extern "C" {
#include <cmocka.h>
}

namespace batchllm {
namespace {

using testing::NumberTexts;

constexpr int32_t code = BATCHLLM_ERROR_MODEL_FORMAT;

// What a reader says of JSON that contains the number where nobody asks for it; each may refuse the
// rest of the text for reasons of its own.
struct Reader {
    const char *name;
    std::function<Status(const std::string &number)> read;
};

Status render(const std::string &conversation) {
    const auto made = ChatTemplate::from_source("file", "x", {});
    std::string out;
    return made->render(conversation, {}, &out);
}

Status read_safetensors(std::string header) {
    std::string file(8, '\0');
    header.resize((header.size() + 7) / 8 * 8, ' ');
    const uint64_t bytes = header.size();
    std::memcpy(file.data(), &bytes, 8);
    file += header;
    return parse_safetensors(std::as_bytes(std::span(file)), "file").status();
}

std::vector<Reader> readers() {
    const auto member = [](const std::string &number) { return "{\"a\": [1, " + number + "]}"; };
    return {
        {"a document", [=](const auto &n) { return JsonDocument::parse(n, "f", code).status(); }},
        {"a file of Python",
         [=](const auto &n) {
             return JsonDocument::parse_of_python(member(n), "f", code).status();
         }},
        {"a tree", [=](const auto &n) { return parse_json_tree(member(n), "f", 4096).status(); }},
        {"a tree of one number",
         [](const auto &n) { return parse_json_tree(n, "f", 4096).status(); }},
        {"config.json",
         [](const auto &n) { return describe_config("{\"a\":" + n + "}", "f").status(); }},
        {"tokenizer.json",
         [](const auto &n) {
             return parse_tokenizer_json("f", "{\"version\":" + n + "\n}").status();
         }},
        {"a header of weights",
         [](const auto &n) { return read_safetensors("{\"a\":{\"dtype\":" + n + "}}"); }},
        {"an annotation of a schema",
         [](const auto &n) { return SchemaDocument::load("{\"default\": " + n + " }").status(); }},
        {"a bound of a schema",
         [](const auto &n) { return SchemaDocument::load("{\"minimum\":" + n + "}").status(); }},
        {"a conversation",
         [](const auto &n) {
             return render("[{\"role\": \"user\", \"content\": \"x\", \"n\": " + n + "}]");
         }},
        {"a description of a device",
         [](const auto &n) { return parse_device_costs("{\"a\":" + n + "}", "f").status(); }},
    };
}

bool refused_as_json(const Status &status) {
    return status.message().find("not JSON") != std::string::npos;
}

int check_readers() {
    NumberTexts texts(seed_of_run());
    int failures = 0, numbers = 0;
    const std::vector<Reader> all = readers();
    for (int32_t i = 0; i < cases(4000, 400); ++i) {
        const std::string text = texts.next();
        const bool good = NumberTexts::is_number(text);
        numbers += good ? 1 : 0;
        for (const Reader &reader : all) {
            const Status status = reader.read(text);
            if (refused_as_json(status) == !good) continue;
            ++failures;
            print_message("%s: %s: %s\n", reader.name, text.c_str(), status.message().c_str());
        }
    }
    if (numbers < cases(1000, 100)) ++failures;
    return failures;
}

void every_reader_accepts_what_is_a_number_and_nothing_else(void **) {
    assert_int_equal(check_readers(), 0);
}

// ---- Values ----

// The value of an integer of up to 38 digits.
std::optional<__int128> integer_in(const std::string &text) {
    const bool minus = text[0] == '-';
    if (text.find_first_of(".eE") != std::string::npos || text.size() > 38) return std::nullopt;
    __int128 value = 0;
    for (const char c : text.substr(minus ? 1 : 0)) value = value * 10 + (c - '0');
    return minus ? -value : value;
}

bool value_is_right(const std::string &text) {
    JsonParser parser;
    JsonView view;
    if (parser.parse(text, &view).kind != JsonFault::Kind::none || !view.is_number()) return false;
    if (view.number_text() != text || view.text() != text) return false;
    const double real = std::strtod(text.c_str(), nullptr);
    const std::optional<double> got = view.number();
    if (std::isinf(real) ? got.has_value() : !got || std::memcmp(&real, &*got, sizeof real) != 0) {
        return false;
    }
    const std::optional<int64_t> integer = view.integer();
    const std::optional<uint64_t> natural = view.unsigned_integer();
    if (text.find_first_of(".eE") == std::string::npos) {
        const std::optional<__int128> value = integer_in(text);
        const bool fits = value && *value >= INT64_MIN && *value <= INT64_MAX;
        const bool fits_natural = value && *value >= 0 && *value <= __int128{UINT64_MAX};
        return view.is_integer() && integer.has_value() == fits && (!fits || *integer == *value) &&
               natural.has_value() == fits_natural && (!fits_natural || *natural == *value);
    }
    const bool whole = std::fabs(real) <= 0x1p53 && real == std::floor(real);
    return !view.is_integer() && integer.has_value() == whole &&
           (!whole || static_cast<double>(*integer) == real) &&
           natural.has_value() == (whole && real >= 0) &&
           (!natural || static_cast<double>(*natural) == real);
}

int check_values() {
    NumberTexts texts(seed_of_run());
    int failures = 0;
    const auto check = [&](const std::string &text) {
        if (value_is_right(text)) return;
        ++failures;
        print_message("%s\n", text.c_str());
    };
    for (const char *text : {"0",
                             "-0",
                             "0.0",
                             "-0.0",
                             "1.0",
                             "1e3",
                             "-1e0",
                             "10e-1",
                             "1e400",
                             "-1e400",
                             "0.1e-9999",
                             "-0.1e-9999",
                             "0e9999",
                             "0.0e-9999",
                             "1e99999999999999999999",
                             "1e-99999999999999999999",
                             "5e-324",
                             "2e-324",
                             "1.7976931348623157e308",
                             "1.7976931348623159e308",
                             "9007199254740992.0",
                             "9007199254740994.0",
                             "-9223372036854775808",
                             "9223372036854775808",
                             "-9223372036854775809",
                             "18446744073709551615",
                             "18446744073709551616",
                             "1000000000000000019884624838656"}) {
        check(text);
    }
    check("1" + std::string(400, '0') + "e-400");
    check("0." + std::string(400, '0') + "1e401");
    for (int32_t i = 0; i < cases(20000, 2000); ++i) {
        const std::string text = texts.next();
        if (NumberTexts::is_number(text)) check(text);
    }
    return failures;
}

void a_value_is_exact_or_refused(void **) { assert_int_equal(check_values(), 0); }

// ---- What JSON allows around a number, and what not ----

int check_places() {
    int failures = 0;
    const auto check = [&](const std::string &text, bool good, const char *words = "") {
        JsonParser parser;
        JsonView root;
        const JsonFault fault = parser.parse(text, &root, {.most_depth = 8});
        const bool read = fault.kind == JsonFault::Kind::none;
        if (read == good && fault.text.find(words) != std::string::npos) return;
        ++failures;
        print_message("%s: %s\n", text.c_str(), fault.text.c_str());
    };
    for (const char *text :
         {" 1 ", "\t\r\n[1 , 2]\r\n", "\xEF\xBB\xBF{\"a\": 1}\n", "[]", "{}", "[[], {}]",
          "{\"a\" : {\"b\":[null,true , false]}}", "\"\\u00e9\\n\\ud83d\\ude00\"",
          "[\"\\\"\", \"\\\\\"]", "{\"a\\\"b\":\"c\"}", "{\"\":\"\"}", "{\"a\":1,\"a\":2}"}) {
        check(text, true);
    }
    for (const char *text : {"",
                             " ",
                             "1 2",
                             "1,2",
                             "1],[2",
                             "1]",
                             "[1",
                             "[1,",
                             "[1,]",
                             "[,1]",
                             "[1 2]",
                             "[1:2]",
                             "[\"a\":1]",
                             "[\"a\" \"b\"]",
                             "[1}",
                             "{1}",
                             "{\"a\"}",
                             "{\"a\":}",
                             "{\"a\" 1}",
                             "{\"a\":1,}",
                             "{\"a\":1 \"b\":2}",
                             "{,}",
                             "{a:1}",
                             "{1:2}",
                             "tru",
                             "truex",
                             "nulll",
                             "[true false]",
                             "\"a",
                             "\"\\x\"",
                             "\"\\u12\"",
                             "\"\\ud800\"",
                             "\"\\udc00\"",
                             "\"\\ud800\\u0041\"",
                             "\"\x01\"",
                             "\"a\"b",
                             "\"a\"1",
                             "1\"a\"",
                             "[1\"a\"]",
                             "NaN",
                             "[Infinity]",
                             "-Infinity",
                             "[-]",
                             "[+]",
                             "[.]",
                             "{\"a\":1}}",
                             "[1]]",
                             "\xEF\xBB",
                             "'a'",
                             "[1]\xEF\xBB\xBF",
                             "\xEF\xBB\xBF\xEF\xBB\xBF"
                             "1"}) {
        check(text, false);
    }
    check("[[[[[[[[1]]]]]]]]", true);
    check("[[[[[[[[[1]]]]]]]]]", false, "nested more than 8 levels deep at byte 8");
    check("[1, 01]", false, "a malformed number at byte 4");
    // What is wrong with a text is more than its numbers.
    JsonParser parser;
    JsonView root;
    if (parser.parse("[01, ", &root).kind != JsonFault::Kind::grammar) ++failures;
    if (parser.parse("[\"\xFF\"]", &root).kind != JsonFault::Kind::utf8) ++failures;
    if (parser.parse(R"({"a": 01, "b": 2})", &root).kind != JsonFault::Kind::number ||
        root.find("b")->integer() != 2 || !root.find("a")->is_null()) {
        ++failures;
    }
    return failures;
}

void only_json_is_json(void **) { assert_int_equal(check_places(), 0); }

} // namespace
} // namespace batchllm

int main() {
    using namespace batchllm;
    const CMUnitTest tests[] = {
        cmocka_unit_test(every_reader_accepts_what_is_a_number_and_nothing_else),
        cmocka_unit_test(a_value_is_exact_or_refused),
        cmocka_unit_test(only_json_is_json),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
