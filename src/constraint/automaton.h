// Sets of byte strings, as deterministic finite automata.
//
// An Automaton is always minimal, and its states are numbered canonically (breadth first, by byte),
// so two automata of the same language are equal member by member. From every state, some string of
// the language can be completed; the automaton of the empty language has no states.
//
// An Automaton is a value: immutable, cheap to copy (copies share their tables), and readable by
// any number of threads. Every operation that can grow spends a Budget, and fails once it is used
// up.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "constraint/budget.h"

namespace batchllm {

class Automaton {
  public:
    static constexpr int32_t kDead = -1;      // no string of the language continues like this
    static constexpr int64_t kUnbounded = -1; // as a maximum count: none
    // Of two maximum counts, the one that allows less.
    static int64_t smaller_bound(int64_t a, int64_t b) {
        if (a == kUnbounded || b == kUnbounded) return std::max(a, b);
        return std::min(a, b);
    }

    Automaton() = default; // the empty language
    static Automaton empty_string();
    static Automaton literal(std::string_view bytes);
    // Any of these strings: their trie, minimised.
    static Result<Automaton> strings(std::vector<std::string> strings, Budget *budget);
    // One byte in [first, last].
    static Automaton byte_range(uint8_t first, uint8_t last);
    // One code point in [first, last], in UTF-8. Surrogates are left out.
    static Automaton code_points(uint32_t first, uint32_t last);
    // One code point in any of these ranges.
    static Result<Automaton> code_points(std::span<const std::pair<uint32_t, uint32_t>> ranges,
                                         Budget *budget);
    static const Automaton &any_text(); // every valid UTF-8 string, including the empty one

    // Questions about the language.
    bool empty() const { return !tables_; }
    bool matches(std::string_view bytes) const;
    bool matches_empty() const { return !empty() && accepting(0); }
    bool finite() const;
    // All strings in byte order if there are at most `limit`; otherwise an error.
    Result<std::vector<std::string>> enumerate(int64_t limit) const;
    // A shortest string. The automaton must not be empty.
    std::string shortest() const;
    // Minimum and maximum length in bytes (kUnbounded: none). The automaton must not be empty.
    int64_t least_bytes() const;
    int64_t greatest_bytes() const;

    // The table itself. State 0 is the start.
    int32_t states() const { return tables_ ? static_cast<int32_t>(tables_->accepting.size()) : 0; }
    bool accepting(int32_t state) const { return tables_->accepting[static_cast<size_t>(state)]; }
    int32_t next(int32_t state, uint8_t byte) const {
        return tables_->next[static_cast<size_t>(state) * static_cast<size_t>(tables_->classes) +
                             tables_->class_of[byte]];
    }
    // Bytes of one class lead every state to the same successor. Classes are numbered by their
    // first byte.
    int32_t classes() const { return tables_ ? tables_->classes : 1; }
    uint8_t class_of(uint8_t byte) const { return tables_ ? tables_->class_of[byte] : uint8_t{0}; }

    bool operator==(const Automaton &other) const;
    uint64_t hash() const; // equal automata have equal hashes

  private:
    friend class AutomatonMaker; // minimize.h: the only place that creates tables
    struct Tables {
        int32_t classes = 1;
        uint8_t class_of[256] = {};
        std::vector<int32_t> next;      // [states, classes]
        std::vector<uint8_t> accepting; // [states]
        uint64_t hash = 0;
    };
    std::shared_ptr<const Tables> tables_; // null: the empty language
};

// a followed by b.
Result<Automaton> concat(const Automaton &a, const Automaton &b, Budget *budget);
Result<Automaton> concat(std::span<const Automaton> parts, Budget *budget);
Result<Automaton> unite(const Automaton &a, const Automaton &b, Budget *budget);
Result<Automaton> unite(std::span<const Automaton> alternatives, Budget *budget);
// Between `least` and `greatest` (kUnbounded: any number of) strings of a in a row. The automaton
// contains that many copies of a. For large counts use Grammar::repeat, which counts instead.
Result<Automaton> repeat(const Automaton &a, int64_t least, int64_t greatest, Budget *budget);
Result<Automaton> intersect(const Automaton &a, const Automaton &b, Budget *budget);
// Strings of a that are not in b.
Result<Automaton> subtract(const Automaton &a, const Automaton &b, Budget *budget);
// Every valid UTF-8 string that is not in a.
Result<Automaton> complement(const Automaton &a, Budget *budget);
// Whether each string of a is in b.
Result<bool> included(const Automaton &a, const Automaton &b, Budget *budget);
// All prefixes of the strings of a, including the strings themselves: the possible states of
// reading one.
Result<Automaton> prefixes(const Automaton &a, Budget *budget);

} // namespace batchllm
