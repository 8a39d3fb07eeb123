// Template text -> tokens, with whitespace control applied: trim_blocks and lstrip_blocks are on,
// and one line end at the end of the template is dropped, as transformers configures jinja2.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace batchllm::jinja {

enum class TokenType : uint8_t {
    data,
    variable_begin,
    variable_end,
    block_begin,
    block_end,
    name,
    string,  // text is unescaped
    integer, // integer
    real,    // real
    operator_,
    end,
};

struct Token {
    TokenType type = TokenType::end;
    int32_t line = 0;
    std::string text;
    int64_t integer = 0;
    double real = 0;

    bool is(TokenType wanted, std::string_view spelling) const {
        return type == wanted && text == spelling;
    }
};

// source must be valid UTF-8. The last token is `end`. An error begins with "line N: ".
Result<std::vector<Token>> tokenize(std::string_view source);

// `what`, followed by the text in quotation marks.
std::string quoted(std::string what, std::string_view text);

Status error_at(int32_t line, const std::string &what);

} // namespace batchllm::jinja
