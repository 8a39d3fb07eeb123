// Sets of strings -> the JSON texts that represent them.
//
// A string of a language (an enum, a pattern, a format, a name) is written in only one way:
// characters unchanged, \" \\ \b \f \n \r \t, and lower-case \u00xx for the other control
// characters, so no two texts represent the same string. A string that is bounded only in length,
// or not at all, may use every escape of JSON except unpaired surrogates.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "constraint/automaton.h"

namespace batchllm {

inline constexpr int64_t kUnbounded = Automaton::kUnbounded;

// A language (UTF-8 texts), or all strings with a length in a range, in code points.
struct StringSet {
    std::optional<Automaton> language;
    int64_t least = 0;                        // only without a language
    int64_t greatest = Automaton::kUnbounded; // only without a language

    bool all() const { return !language && least == 0 && greatest == Automaton::kUnbounded; }
    bool empty() const {
        return language ? language->empty() : greatest != Automaton::kUnbounded && least > greatest;
    }
    bool operator==(const StringSet &) const = default;
};

Result<StringSet> intersect(const StringSet &a, const StringSet &b, Budget *budget);
// The strings that are not in the set, as a union of sets.
Result<std::vector<StringSet>> complement(const StringSet &set, Budget *budget);
// The set as a language.
Result<Automaton> language_of(const StringSet &set, Budget *budget);

// The text that goes between the quotation marks.
std::string json_escaped(std::string_view text);
// The language's strings in quotation marks, each followed by `after`, except those in `without`.
Result<Automaton> json_quoted(const Automaton &language, std::string_view after,
                              const std::vector<std::string> &without, Budget *budget);

// Any string in any spelling, including the quotation marks.
const Automaton &any_json_string();
const Automaton &any_json_character(); // a single one, without quotation marks

} // namespace batchllm
