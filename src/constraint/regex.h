// The text of a regular expression -> the automaton of the UTF-8 texts that it matches.
//
// Both dialects: literals, . [..] [^..] ( ) (?: ) (?<name> ) | * + ? {m} {m,} {m,n} and their lazy forms
// (the same set of texts), ^ $ \b \B, \d \D \w \W \s \S, \t \n \r \f \v \0 \xHH \uHHHH, and lookaheads
// (?= ) (?! ) that are not inside something repeated. A character is a code point, never half of one.
// \d, \w and \b are ASCII's.
//
//   ecma     JSON Schema's `pattern`, ECMA-262 with the flag u: matches anywhere in the text unless
//   ^
//            and $ say otherwise. Also \cX, \u{H..}, surrogate pairs as \uHHHH\uHHHH, \p{..} and
//            \P{..}
//            by general category (long and short names; Any, ASCII, Alphabetic as letters and Nl).
//            \s is Unicode white space. A { that starts no count, and a lone ] or }, are literals.
//   python   What re.fullmatch(expression, text, re.ASCII) matches; `$` matches only at the very
//   end. Also
//            (?P<name> ), \a \A \Z \UHHHHHHHH, (?i) (?s) (?a) for all or (?i: ) for a group, (?# ),
//            octal.
//            \s is ASCII white space. \p{..} as above, which Python's own re lacks.
//
// In ecma, a - next to a class in brackets, as in [\w-.], is a literal. An expression has at most
// 64 KiB. (?i) folds ASCII letters. Rejected by name and position: back-references, lookbehind,
// atomic groups, possessive counts, conditions, (?m) and (?x), lookaheads inside a repetition.
#pragma once

#include <string_view>

#include "constraint/automaton.h"
#include "text/regex/tree.h"

namespace batchllm {

// BATCHLLM_ERROR_INVALID_ARGUMENT for an invalid expression, BATCHLLM_ERROR_UNSUPPORTED for one
// that is rejected or too large; the text has the position in characters, from 1. The automaton may
// be empty if nothing matches ("a^b").
Result<Automaton> compile_regex(std::string_view expression, const RegexOptions &options,
                                Budget *budget);

} // namespace batchllm
