// Stop strings in streamed text, compared with a search of the whole text.
#include <algorithm>
#include <random>

#include "processor_time.h"
#include "sample/stop.h"
#include "testing.h"

using namespace batchllm;

namespace {

constexpr uint64_t seed = 20261120;

struct Outcome {
    std::string text;
    bool found = false;
};

Outcome stream(const std::vector<std::string> &stops, const std::vector<std::string> &pieces) {
    const StopStrings strings(stops);
    StopScanner scanner(strings);
    Outcome outcome;
    for (const std::string &piece : pieces) outcome.found = scanner.push(piece, &outcome.text);
    scanner.finish(&outcome.text);
    assert_int_equal(scanner.found(), outcome.found);
    return outcome;
}

// The stop string whose last byte comes first; the longest of those that end there.
Outcome search(const std::vector<std::string> &stops, const std::string &text) {
    for (size_t end = 1; end <= text.size(); ++end) {
        size_t longest = 0;
        for (const std::string &stop : stops) {
            if (stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0) {
                longest = std::max(longest, stop.size());
            }
        }
        if (longest > 0) return {text.substr(0, end - longest), true};
    }
    return {text, false};
}

void text_is_cut_before_the_stop_string(void **) {
    Outcome outcome = stream({"\n\n"}, {"one\n", "two\n", "\nthree"});
    assert_true(outcome.found);
    assert_string_equal(outcome.text.c_str(), "one\ntwo");
    outcome = stream({"END"}, {"E", "N", "E", "ND", "more"});
    assert_true(outcome.found);
    assert_string_equal(outcome.text.c_str(), "EN");
    outcome = stream({"END"}, {"no stop E", "N"});
    assert_false(outcome.found);
    assert_string_equal(outcome.text.c_str(), "no stop EN");
}

void the_string_that_ends_first_wins(void **) {
    assert_string_equal(stream({"abcd", "bc"}, {"xabcd"}).text.c_str(), "xa");
    assert_string_equal(stream({"bcd", "abcd"}, {"xabcd"}).text.c_str(), "x");
    assert_string_equal(stream({"d", "cd", "abcd"}, {"xabcd"}).text.c_str(), "x");
    assert_string_equal(stream({"zz", "b"}, {"abzz"}).text.c_str(), "a");
}

void only_what_may_become_a_stop_string_is_held_back(void **) {
    const StopStrings strings(std::vector<std::string>{"</end>", "<br>"});
    StopScanner scanner(strings);
    std::string text;
    assert_false(scanner.push("some text <", &text));
    assert_string_equal(text.c_str(), "some text ");
    assert_int_equal(scanner.held(), 1);
    assert_false(scanner.push("/en", &text));
    assert_string_equal(text.c_str(), "some text ");
    assert_int_equal(scanner.held(), 4);
    assert_false(scanner.push("<b", &text));
    assert_string_equal(text.c_str(), "some text </en");
    assert_int_equal(scanner.held(), 2);
    assert_false(scanner.push("old", &text));
    assert_string_equal(text.c_str(), "some text </en<bold");
    assert_int_equal(scanner.held(), 0);
    assert_true(scanner.push("<br>x", &text));
    assert_true(scanner.push("more", &text));
    scanner.finish(&text);
    assert_string_equal(text.c_str(), "some text </en<bold");
}

void no_stop_strings_hold_nothing_back(void **) {
    assert_true(StopStrings({}).empty());
    const Outcome outcome = stream({}, {"a", "", "b"});
    assert_false(outcome.found);
    assert_string_equal(outcome.text.c_str(), "ab");
}

void characters_are_not_split(void **) {
    // Two characters that share their first two bytes: the text shown ends between characters.
    const StopStrings strings(std::vector<std::string>{"\xe2\x82\xac"});
    StopScanner scanner(strings);
    std::string text;
    assert_false(scanner.push("\xe2\x82\xad", &text));
    assert_string_equal(text.c_str(), "\xe2\x82\xad");
    assert_true(scanner.push("\xe2\x82\xac", &text));
    assert_string_equal(text.c_str(), "\xe2\x82\xad");
}

void streaming_equals_searching_the_whole_text(void **) {
    print_message("seed %llu\n", static_cast<unsigned long long>(seed));
    std::mt19937_64 random(seed);
    const auto word = [&](size_t longest, size_t letters) {
        std::string out;
        for (size_t i = 1 + random() % longest; i > 0; --i) {
            out += static_cast<char>('a' + random() % letters);
        }
        return out;
    };
    int64_t found = 0;
    for (int64_t round = 0; round < 20000; ++round) {
        const size_t letters = 2 + random() % 2;
        std::vector<std::string> stops;
        for (size_t i = 1 + random() % 4; i > 0; --i) stops.push_back(word(7, letters));
        std::vector<std::string> pieces;
        std::string whole;
        for (size_t i = random() % 8; i > 0; --i) {
            pieces.push_back(random() % 6 == 0 ? "" : word(4, letters));
            whole += pieces.back();
        }
        const Outcome expected = search(stops, whole);
        const Outcome got = stream(stops, pieces);
        if (got.text != expected.text || got.found != expected.found) {
            std::string list;
            for (const std::string &stop : stops) list += stop + " ";
            fail_msg("stops %sin %s: \"%s\", not \"%s\"", list.c_str(), whole.c_str(),
                     got.text.c_str(), expected.text.c_str());
        }
        found += static_cast<int64_t>(got.found);
    }
    assert_true(found > 5000 && found < 19000);
}

void long_stop_strings_take_linear_time(void **) {
    // The whole text is held back to its end. A scanner that copies or searches the held text again
    // would take 20,000 times as many steps here.
    const size_t length = 20000;
    const std::vector<std::string> stops{std::string(length, 'a') + "b",
                                         std::string(length / 2, 'a') + "c"};
    const StopStrings strings(stops);
    StopScanner scanner(strings);
    std::string text;
    const size_t bytes = 4'000'000;
    const double seconds = processor_seconds(1, [&] {
        for (size_t i = 0; i < bytes; i += 4) assert_false(scanner.push("aaaa", &text));
        scanner.finish(&text);
    });
    assert_int_equal(text.size(), bytes);
    print_message("%.0f ns a byte\n", seconds / static_cast<double>(bytes) * 1e9);
    assert_true(seconds < 60); // two with sanitizers
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(text_is_cut_before_the_stop_string),
        cmocka_unit_test(the_string_that_ends_first_wins),
        cmocka_unit_test(only_what_may_become_a_stop_string_is_held_back),
        cmocka_unit_test(no_stop_strings_hold_nothing_back),
        cmocka_unit_test(characters_are_not_split),
        cmocka_unit_test(streaming_equals_searching_the_whole_text),
        cmocka_unit_test(long_stop_strings_take_linear_time),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
