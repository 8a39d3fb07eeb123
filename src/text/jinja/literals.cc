#include "text/jinja/literals.h"

#include <charconv>
#include <cstdlib>

#include "text/utf8.h"

namespace batchllm::jinja {
namespace {

int digit_value(char c) {
    if (is_digit(c)) return c - '0';
    const char lower = static_cast<char>(c | 0x20);
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : 99;
}

// Reads digits of a base, with single underscores between them, which are left out of *out.
size_t digits(std::string_view text, size_t from, int base, std::string *out) {
    size_t i = from;
    while (i < text.size()) {
        const bool gap = text[i] == '_';
        if (gap && (i == from || i + 1 == text.size())) break;
        const char digit = text[gap ? i + 1 : i];
        if (digit_value(digit) >= base) break;
        out->push_back(digit);
        i += gap ? 2 : 1;
    }
    return i;
}

Result<Token> integer(const std::string &digits, int base, int32_t line,
                      std::string_view spelling) {
    Token token;
    token.type = TokenType::integer;
    token.line = line;
    token.text = spelling;
    const auto read =
        std::from_chars(digits.data(), digits.data() + digits.size(), token.integer, base);
    if (read.ec != std::errc()) {
        return error_at(line, quoted("a number is beyond 64 bits: ", digits));
    }
    return token;
}

} // namespace

Result<Token> number_at(std::string_view text, size_t at, int32_t line) {
    std::string whole;
    const char marker =
        at + 1 < text.size() && text[at] == '0' ? static_cast<char>(text[at + 1] | 0x20) : '\0';
    const int base = marker == 'x' ? 16 : marker == 'o' ? 8 : marker == 'b' ? 2 : 10;
    if (base != 10) {
        const size_t end = digits(text, at + 2, base, &whole);
        if (!whole.empty()) return integer(whole, base, line, text.substr(at, end - at));
    }
    whole.clear();
    const size_t whole_end = digits(text, at, 10, &whole);
    size_t end = whole_end;
    std::string real = whole;
    // A number after a dot is an index: a.0.1.
    const bool index = at > 0 && text[at - 1] == '.';
    std::string part;
    if (!index && end < text.size() && text[end] == '.') {
        const size_t next = digits(text, end + 1, 10, &part);
        if (!part.empty()) {
            real += '.';
            real += part;
            end = next;
        }
    }
    if (!index && end < text.size() && (text[end] | 0x20) == 'e') {
        size_t next = end + 1;
        std::string sign;
        if (next < text.size() && (text[next] == '+' || text[next] == '-')) {
            sign = text[next++];
        }
        part.clear();
        next = digits(text, next, 10, &part);
        if (!part.empty()) {
            real += 'e';
            real += sign;
            real += part;
            end = next;
        }
    }
    if (end == whole_end) {
        if (whole.size() > 1 && whole[0] == '0' &&
            whole.find_first_not_of('0') != std::string::npos) {
            return error_at(line, quoted("a number begins with 0: ", whole));
        }
        return integer(whole, 10, line, text.substr(at, end - at));
    }
    Token token;
    token.type = TokenType::real;
    token.line = line;
    token.text = text.substr(at, end - at);
    token.real = std::strtod(real.c_str(), nullptr);
    return token;
}

Result<std::string> unescape(std::string_view raw, int32_t line) {
    std::string out;
    for (size_t i = 0; i < raw.size(); ++i) {
        if (raw[i] != '\\') {
            out.push_back(raw[i]);
            continue;
        }
        const char c = raw[++i];
        static constexpr std::string_view names = "\\'\"abfnrtv";
        static constexpr std::string_view meant = "\\'\"\a\b\f\n\r\t\v";
        if (const size_t known = names.find(c); known != std::string_view::npos) {
            out.push_back(meant[known]);
        } else if (c == '\n') {
            continue;
        } else if (c >= '0' && c <= '7') {
            uint32_t value = 0;
            size_t next = i;
            while (next < raw.size() && next < i + 3 && raw[next] >= '0' && raw[next] <= '7') {
                value = value * 8 + static_cast<uint32_t>(raw[next++] - '0');
            }
            utf8_append(value, &out);
            i = next - 1;
        } else if (c == 'x' || c == 'u' || c == 'U') {
            const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
            uint32_t value = 0;
            for (size_t k = 1; k <= digits; ++k) {
                if (i + k >= raw.size() || digit_value(raw[i + k]) >= 16) {
                    return error_at(
                        line, quoted("without its digits in a string: \\", std::string(1, c)));
                }
                value = value * 16 + static_cast<uint32_t>(digit_value(raw[i + k]));
            }
            if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) {
                return error_at(line,
                                quoted("names no character in a string: \\", std::string(1, c)));
            }
            utf8_append(value, &out);
            i += digits;
        } else if (c == 'N') {
            return error_at(line, "\\N in a string is not supported");
        } else {
            out.push_back('\\');
            out.push_back(c);
        }
    }
    return out;
}

} // namespace batchllm::jinja
