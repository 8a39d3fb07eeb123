// Finds what a regular expression matches, by backtracking: of alternatives the first that leads to a match counts, as
// in Oniguruma, whose dialect it reads.
//
// Time: a search that turns back again and again remembers what has failed, so that without lookaheads it takes at most
// about the product of the expression's and the text's length, and then memory of an eighth of a byte for each pair of a
// step and a byte. What it may turn back to takes 24 bytes for each round of a loop that is not of single characters.
// A matcher never changes; any number of threads may use it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/code_point_table.h"
#include "text/regex/tree.h"
#include "text/utf8.h"

namespace batchllm {

class RegexMatcher {
  public:
    // Errors: those of parse_regex(); UNSUPPORTED if the expression is too large.
    static Result<RegexMatcher> make(std::string_view expression);

    struct Match {
        size_t begin;
        size_t end;
    };
    // The first match that begins at byte `from` or after it, and is not empty at `from` itself. text: valid UTF-8.
    std::optional<Match> find(std::string_view text, size_t from) const;

    // Whether it may match the empty text.
    bool may_be_empty() const { return may_be_empty_; }

  private:
    friend class RegexProgram; // writes the steps
    friend class RegexSearch;  // takes them

    // A step of the program; those that choose go on with `other` if `next` leads to no match.
    struct Step {
        enum class Kind : uint8_t {
            match,  // the end
            one,    // a character of the set
            run,    // least to most of them, the most first, or the fewest if lazy
            choice, // next, then other
            enter,  // a round of a loop that may read nothing
            again,  // the next round, if this one has read something, otherwise other
            assertion,
            beside, // the character after this place is one of the set, or with negative is not
            look,   // other matches here, or with negative does not
            atomic, // what other matches first, and nothing else that it could
        };
        Kind kind = Kind::match;
        uint8_t set = 0;
        bool negative = false;
        bool lazy = false;       // run
        bool possessive = false; // run
        RegexNode::Assertion assertion = RegexNode::Assertion::none;
        int32_t least = 0, most = 0; // run; most -1: no limit
        int32_t next = 0, other = 0;
        int32_t mark =
            -1; // of a run and a choice: their number, counted from 0; of enter and again, the loop's
    };

    // Which sets have the character at p, of *length bytes: bit i for set i.
    uint64_t sets_at(const char *p, int32_t *length) const {
        if (static_cast<signed char>(*p) >= 0) {
            *length = 1;
            return ascii_[static_cast<size_t>(*p)];
        }
        return sets_.of(utf8_decode(p, length));
    }
    void make_sets(const std::vector<CodePointSet> &sets);

    std::vector<Step> steps_;
    int32_t start_ = 0;
    int32_t marks_ = 0, loops_ = 0;
    uint64_t first_ = 0;     // the sets of which one has the first character of a match
    bool any_first_ = false; // or not even that is known
    bool may_be_empty_ = false;
    uint8_t word_ = 0; // the set \w, if there is a \b
    std::array<uint64_t, 128> ascii_{};
    CodePointTable<uint64_t> sets_;
};

} // namespace batchllm
