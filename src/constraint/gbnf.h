// GBNF, llama.cpp's grammar format -> a Grammar. The text begins at the rule `root`.
//
//     root   ::= "{" ws pair ("," ws pair)* "}"      # a comment
//     pair   ::= "\"" [a-z_]+ "\":" ws (number | "null")
//     number ::= "-"? [0-9]{1,9} ("." [0-9]+)?
//     ws     ::= [ \t\n]*
//
// Supported: rules `name ::= alternatives`; "text"; [classes], [^inverse], ranges; . for any
// character; groups; * + ? {m} {m,} {m,n}; comments; escapes \n \r \t \\ \" \' \[ \] \- \^ \/ \xHH
// \uHHHH \UHHHHHHHH. A rule ends with its line, except inside a group, after ::=, after |, and
// before a line that begins with |. A rule may begin with itself ("list ::= list item | item").
// Longer left recursion is rejected by name, and so are llama.cpp's tokens (<think>, <[1000]>).
#pragma once

#include <string_view>

#include "constraint/grammar.h"

namespace batchllm {

// Errors name line and column: BATCHLLM_ERROR_INVALID_ARGUMENT, BATCHLLM_ERROR_UNSUPPORTED.
Result<Grammar> parse_gbnf(std::string_view text, Budget *budget);

} // namespace batchllm
