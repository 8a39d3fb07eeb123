#include "text/regex/reader.h"

#include <algorithm>

#include "base/printable.h"
#include "text/unicode.h"

namespace batchllm {
namespace {

int32_t hexadecimal_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

// Of the reference's classes of characters.
CodePointSet with_bits(uint16_t bits) {
    CodePointSet set;
    for (uint32_t point = 0; point <= 0x10FFFF; ++point) {
        if ((unicode_classes().of(point) & bits) != 0) set.add(point, point);
    }
    set.normalize();
    return set;
}

// \w of Oniguruma, which outside brackets has six numbers more.
const CodePointSet &ruby_word(bool in_class) {
    static const CodePointSet inside =
        with_bits(kWord).intersection(CodePointSet{{0x200C, 0x200D}}.inverse());
    static const CodePointSet outside = [] {
        CodePointSet set = inside;
        set.add({{0xB2, 0xB3}, {0xB9, 0xB9}, {0xBC, 0xBE}});
        set.normalize();
        return set;
    }();
    return in_class ? inside : outside;
}

CodePointSet class_of(char name, RegexDialect dialect, bool in_class) {
    if (dialect == RegexDialect::oniguruma) {
        static const CodePointSet digits = *unicode_property("Nd"), spaces = with_bits(kSpace);
        return name == 'd' ? digits : name == 'w' ? ruby_word(in_class) : spaces;
    }
    switch (name) {
    case 'd':
        return {{'0', '9'}};
    case 'w':
        return {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    default:
        if (dialect == RegexDialect::python) return {{'\t', '\r'}, {' ', ' '}};
        return {{'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680},
                {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
    }
}

bool is_octal(char c) { return c >= '0' && c <= '7'; }

} // namespace

int64_t RegexReader::position() const {
    return 1 + std::count_if(text_.begin(), text_.begin() + static_cast<ptrdiff_t>(place_),
                             [](char c) { return !utf8_continues(c); });
}

Status RegexReader::invalid(const std::string &problem) const {
    return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "character %lld: %s",
                 static_cast<long long>(position()), problem.c_str());
}

Status RegexReader::unsupported(const std::string &what) const {
    return error(BATCHLLM_ERROR_UNSUPPORTED, "character %lld: %s is not supported",
                 static_cast<long long>(position()), what.c_str());
}

bool RegexReader::number(int64_t *value) {
    constexpr int64_t most = 1'000'000'000;
    if (at_end() || peek() < '0' || peek() > '9') return false;
    *value = 0;
    for (; !at_end() && peek() >= '0' && peek() <= '9'; skip(1))
        *value = std::min(most, *value * 10 + (peek() - '0'));
    return true;
}

Result<bool> RegexReader::count(bool from_none, Count *count) {
    switch (peek()) {
    case '*':
        *count = {0, RegexNode::unbounded};
        break;
    case '+':
        *count = {1, RegexNode::unbounded};
        break;
    case '?':
        *count = {0, 1};
        break;
    case '{': {
        const RegexReader start = *this;
        skip(1);
        const bool has_least = number(&count->least);
        if (!has_least) count->least = 0;
        const bool comma = peek() == ',';
        if (comma) skip(1);
        const bool has_greatest = comma && number(&count->greatest);
        const bool complete = has_least || (from_none && has_greatest);
        if (!complete || peek() != '}') {
            *this = start;
            return false;
        }
        skip(1);
        count->single = !comma;
        if (!comma) count->greatest = count->least;
        if (comma && !has_greatest) count->greatest = RegexNode::unbounded;
        if (count->greatest != RegexNode::unbounded && count->greatest < count->least)
            return start.invalid("a count whose end is below its start");
        return true;
    }
    default:
        return false;
    }
    skip(1);
    return true;
}

Status RegexReader::hexadecimal(int32_t digits, uint32_t *value) {
    *value = 0;
    for (int32_t i = 0; i < digits; ++i) {
        const int32_t digit = hexadecimal_digit(peek());
        if (digit < 0) return invalid("a hexadecimal digit is missing");
        *value = *value * 16 + static_cast<uint32_t>(digit);
        skip(1);
    }
    return {};
}

// A code point in braces.
Status RegexReader::braced_point(uint32_t *point) {
    const RegexReader start = *this;
    skip(1);
    *point = 0;
    if (peek() == '}') return start.invalid("a code point is missing");
    for (; peek() != '}'; skip(1)) {
        const int32_t digit = hexadecimal_digit(peek());
        if (digit < 0) return invalid("a hexadecimal digit is missing");
        *point = *point * 16 + static_cast<uint32_t>(digit);
        if (*point > 0x10FFFF) return start.invalid("no such code point");
    }
    skip(1);
    return {};
}

// What follows \u.
Status RegexReader::unicode_escape(RegexDialect dialect, uint32_t *point) {
    if (dialect == RegexDialect::ecma && peek() == '{') return braced_point(point);
    RETURN_IF_ERROR(hexadecimal(4, point));
    const bool leads = *point >= 0xD800 && *point < 0xDC00;
    if (dialect == RegexDialect::ecma && leads && rest().starts_with("\\u")) {
        const RegexReader start = *this;
        skip(2);
        uint32_t trail;
        const Status read = hexadecimal(4, &trail);
        if (read.ok() && trail >= 0xDC00 && trail < 0xE000)
            *point = 0x10000 + ((*point - 0xD800) << 10) + (trail - 0xDC00);
        else
            *this = start;
    }
    return {};
}

// What follows \p or \P.
Status RegexReader::property(RegexDialect dialect, bool negative, Escape *found) {
    const RegexReader start = *this;
    if (peek() != '{') return invalid("\\p without its {");
    const size_t end = rest().find('}');
    if (end == std::string_view::npos) return invalid("\\p{ without its }");
    std::string_view name = rest().substr(1, end - 1);
    skip(end + 1);
    const bool oniguruma = dialect == RegexDialect::oniguruma;
    if (name.starts_with("^")) {
        if (!oniguruma) return start.invalid("no such property");
        negative = !negative;
        name.remove_prefix(1);
    }
    const auto set = oniguruma ? oniguruma_property(name) : unicode_property(name);
    if (!set) {
        // A script or an unknown property: the error names it.
        return start.unsupported("the property " + in_quotes(name));
    }
    found->is_set = true;
    found->fold = !oniguruma; // which folds properties only in brackets
    found->set = negative ? set->inverse() : *set;
    return {};
}

Status RegexReader::escape(RegexDialect dialect, bool in_class, Escape *found) {
    const RegexReader start = *this;
    const bool python = dialect == RegexDialect::python;
    const bool oniguruma = dialect == RegexDialect::oniguruma;
    skip(1);
    if (at_end()) return start.invalid("a \\ at the end");
    const uint32_t c = take();
    switch (c) {
    case 'd':
    case 'w':
    case 's':
        found->is_set = true;
        found->set = class_of(static_cast<char>(c), dialect, in_class);
        return {};
    case 'D':
    case 'W':
    case 'S':
        found->is_set = true;
        found->set = class_of(static_cast<char>(c | 0x20), dialect, in_class).inverse();
        return {};
    case 'p':
    case 'P':
        return property(dialect, c == 'P', found);
    case 't':
        found->point = '\t';
        return {};
    case 'n':
        found->point = '\n';
        return {};
    case 'r':
        found->point = '\r';
        return {};
    case 'f':
        found->point = '\f';
        return {};
    case 'v':
        found->point = '\v';
        return {};
    case 'x':
        if (oniguruma && peek() == '{') return braced_point(&found->point);
        RETURN_IF_ERROR(hexadecimal(2, &found->point));
        if (oniguruma && found->point > 0x7F) return start.unsupported("a byte of a character");
        return {};
    case 'u':
        return unicode_escape(dialect, &found->point);
    case 'b':
        if (!in_class) break;
        found->point = '\b';
        return {};
    case 'k':
        return start.unsupported("a back-reference");
    case '0': {
        found->point = 0;
        for (int32_t i = 0; i < 2 && dialect != RegexDialect::ecma && is_octal(peek()); ++i)
            found->point = found->point * 8 + (take() - '0');
        return {};
    }
    default:
        break;
    }
    if (dialect != RegexDialect::ecma && c == 'a') {
        found->point = '\a';
        return {};
    }
    if (oniguruma && (c == 'h' || c == 'H')) {
        const CodePointSet digits = {{'0', '9'}, {'A', 'F'}, {'a', 'f'}};
        found->is_set = true;
        found->set = c == 'h' ? digits : digits.inverse();
        return {};
    }
    if (oniguruma && c == 'e') {
        found->point = 0x1B;
        return {};
    }
    if (python && c == 'U') {
        RETURN_IF_ERROR(hexadecimal(8, &found->point));
        return found->point > 0x10FFFF ? start.invalid("no such code point") : Status();
    }
    if (dialect == RegexDialect::ecma && c == 'c') {
        const char letter = peek();
        if (!((letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z')))
            return start.invalid("\\c without its letter");
        found->point = take() % 32;
        return {};
    }
    if (c >= '1' && c <= '9') {
        if (python && is_octal(static_cast<char>(c)) && rest().size() > 1 && is_octal(rest()[0]) &&
            is_octal(rest()[1])) {
            found->point = (c - '0') * 64 + (take() - '0') * 8;
            found->point += take() - '0';
            return found->point > 0377 ? start.invalid("an octal escape above \\377") : Status();
        }
        return start.unsupported("a back-reference");
    }
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (letter && oniguruma) return start.unsupported(std::string("\\") + static_cast<char>(c));
    if (letter) return start.invalid("no such escape");
    found->point = c;
    return {};
}

} // namespace batchllm
