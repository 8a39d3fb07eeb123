// Lark grammars -> a Grammar, as users of vLLM and llguidance write them. The text begins at
// `start`.
//
//     start: "{" pair ("," pair)* "}"
//     pair: NAME ":" (NUMBER | "null"i)
//     NAME: /[a-z_]+/
//     %import common.NUMBER
//     %ignore " "
//
// Supported: rules in lower case, TERMINALS in upper case; "text", "text"i, "a".."z", /expressions/
// of Python's re with the flags i and s; groups, [optional], ? * + ~n ~n..m, alternatives (also on
// lines that begin with |), comments (// and #). Syntax that only affects a parse tree is accepted
// and ignored: ?rule, !rule, -> alias, .priority. %ignore allows its terminal between other
// terminals, at the start and at the end. From `common`, %import can import: DIGIT HEXDIGIT INT
// SIGNED_INT DECIMAL FLOAT SIGNED_FLOAT NUMBER SIGNED_NUMBER ESCAPED_STRING LCASE_LETTER
// UCASE_LETTER LETTER WORD CNAME WS_INLINE WS CR LF NEWLINE SH_COMMENT CPP_COMMENT C_COMMENT.
//
// A text matches if it can be derived. There is no separate lexer that decides where a terminal
// ends; if two terminals fit, both are tried. A rule may begin with itself ("sum: sum "+" NUMBER |
// NUMBER"). Longer left recursion is rejected, and so are templates, %declare, %extend, %override
// and other imports.
#pragma once

#include <string_view>

#include "constraint/grammar.h"

namespace batchllm {

// Errors name line and column: BATCHLLM_ERROR_INVALID_ARGUMENT, BATCHLLM_ERROR_UNSUPPORTED.
Result<Grammar> parse_lark(std::string_view text, Budget *budget);

} // namespace batchllm
