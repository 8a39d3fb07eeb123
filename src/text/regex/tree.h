// A regular expression's text -> its tree, with flags, escapes and classes resolved.
//
// constraint/regex.h lists what the dialects ecma and python have. oniguruma is what Oniguruma reads in Ruby's
// syntax, in which tokenizer.json has its expressions. Beside what all have:
//
//   (?> ) and the possessive ?+ *+ ++, counts after counts, {,n}, (?# ), (?m) and (?m: ): . matches a newline too,
//   \a \e \h \H \A \z \Z \x{H..}, octal, classes in classes and their intersection [..&&..].
//   \d \w \s and \b are Unicode's, ^ and $ match at lines, lookaheads may be in what is repeated. \p{..}: general categories, Any,
//   ASCII, Assigned and the scripts of text/unicode.h, in any case, also \p{^..}.
//   (?i) folds ASCII letters and what folds to one of them; it is refused where folding would do more.
//
// Rejected by name and position: what no dialect has, and lookbehind, POSIX brackets, flags for the rest of a group.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/regex/code_points.h"

namespace batchllm {

enum class RegexDialect : uint8_t { ecma, python, oniguruma };

struct RegexOptions {
    RegexDialect dialect = RegexDialect::python;
    bool ignore_case = false; // as with a leading (?i)
    bool dot_all = false;     // as with a leading (?s)
};

struct RegexNode {
    enum class Kind : uint8_t {
        characters,
        concat,
        alternate,
        repeat,
        assertion,
        lookahead,
        atomic
    };
    // A condition that reads nothing. The last three are Oniguruma's: text_before_line_end is the end
    // of the text, or before a newline that ends it.
    enum class Assertion : uint8_t {
        none,
        text_start,
        text_end,
        word_boundary,
        no_word_boundary,
        line_start,
        line_end,
        text_before_line_end
    };
    static constexpr int64_t unbounded = -1; // as a maximum count: none

    Kind kind;
    std::vector<int32_t> children = {};    // indices of RegexTree::nodes
    int32_t set = -1;                      // characters: index of RegexTree::sets
    int64_t least = 0;                     // repeat
    int64_t greatest = 0;                  // repeat; or unbounded
    bool lazy = false;                     // repeat
    Assertion assertion = Assertion::none; // assertion
    bool negative = false;                 // lookahead
    int64_t position = 0; // lookahead: its position in the text, in characters from 1
    // In the node or anywhere below it.
    bool has_lookahead = false;
    bool looks_back = false; // ^, \b, \B: the preceding text matters
};

struct RegexTree {
    std::vector<RegexNode> nodes;   // children before their parents
    std::vector<CodePointSet> sets; // each once
    int32_t root = -1;
};

// BATCHLLM_ERROR_INVALID_ARGUMENT for an invalid expression, BATCHLLM_ERROR_UNSUPPORTED for one that
// is rejected; the text has the position in characters, from 1.
Result<RegexTree> parse_regex(std::string_view expression, const RegexOptions &options);

} // namespace batchllm
