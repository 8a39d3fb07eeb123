#include "text/jinja/python_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "text/utf8.h"

namespace batchllm::jinja {
namespace {

uint32_t first_point(std::string_view text, int32_t *bytes) {
    return utf8_decode(text.data(), bytes);
}

std::string_view last_character(std::string_view text) {
    const char *begin = utf8_previous(text.data() + text.size());
    return text.substr(static_cast<size_t>(begin - text.data()));
}

bool contains_character(std::string_view characters, std::string_view one) {
    // UTF-8 is self-synchronizing: a whole character is found only where one begins.
    return characters.find(one) != std::string_view::npos;
}

void append_hex(uint32_t value, int digits, std::string *out) {
    for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) {
        out->push_back("0123456789abcdef"[value >> shift & 15]);
    }
}

// str.splitlines() ends a line here.
bool is_line_end(uint32_t point) {
    return (point >= 0x0A && point <= 0x0D) || (point >= 0x1C && point <= 0x1E) || point == 0x85 ||
           point == 0x2028 || point == 0x2029;
}

} // namespace

bool is_python_space(uint32_t point) {
    if (point < 0x80) {
        return point == ' ' || (point >= 0x09 && point <= 0x0D) || (point >= 0x1C && point <= 0x1F);
    }
    return point == 0x85 || point == 0xA0 || point == 0x1680 ||
           (point >= 0x2000 && point <= 0x200A) || point == 0x2028 || point == 0x2029 ||
           point == 0x202F || point == 0x205F || point == 0x3000;
}

std::string_view left_strip(std::string_view text) {
    while (!text.empty()) {
        int32_t bytes = 0;
        if (!is_python_space(first_point(text, &bytes))) break;
        text.remove_prefix(static_cast<size_t>(bytes));
    }
    return text;
}

std::string_view right_strip(std::string_view text) {
    while (!text.empty()) {
        const std::string_view last = last_character(text);
        int32_t bytes = 0;
        if (!is_python_space(first_point(last, &bytes))) break;
        text.remove_suffix(last.size());
    }
    return text;
}

std::string_view left_strip(std::string_view text, std::string_view characters) {
    while (!text.empty()) {
        const auto bytes = static_cast<size_t>(utf8_length(text[0]));
        if (!contains_character(characters, text.substr(0, bytes))) break;
        text.remove_prefix(bytes);
    }
    return text;
}

std::string_view right_strip(std::string_view text, std::string_view characters) {
    while (!text.empty()) {
        const std::string_view last = last_character(text);
        if (!contains_character(characters, last)) break;
        text.remove_suffix(last.size());
    }
    return text;
}

size_t length(std::string_view text) {
    return static_cast<size_t>(
        std::count_if(text.begin(), text.end(), [](char byte) { return !utf8_continues(byte); }));
}

size_t byte_of(std::string_view text, size_t character) {
    size_t byte = 0;
    for (; character > 0 && byte < text.size(); --character) {
        byte += static_cast<size_t>(utf8_length(text[byte]));
    }
    return byte;
}

std::vector<std::string_view> split_lines(std::string_view text) {
    std::vector<std::string_view> lines;
    size_t begin = 0;
    for (size_t i = 0; i < text.size();) {
        int32_t bytes = 0;
        const uint32_t point = utf8_decode(text.data() + i, &bytes);
        const size_t end = i;
        i += static_cast<size_t>(bytes);
        if (!is_line_end(point)) continue;
        if (point == '\r' && i < text.size() && text[i] == '\n') ++i;
        lines.push_back(text.substr(begin, end - begin));
        begin = i;
    }
    if (begin < text.size()) lines.push_back(text.substr(begin));
    return lines;
}

std::vector<std::string_view> split_spaces(std::string_view text, int64_t most) {
    std::vector<std::string_view> parts;
    text = left_strip(text);
    while (!text.empty()) {
        if (most >= 0 && static_cast<int64_t>(parts.size()) == most) {
            parts.push_back(right_strip(text));
            break;
        }
        size_t end = 0;
        while (end < text.size()) {
            int32_t bytes = 0;
            if (is_python_space(utf8_decode(text.data() + end, &bytes))) break;
            end += static_cast<size_t>(bytes);
        }
        parts.push_back(text.substr(0, end));
        text = left_strip(text.substr(end));
    }
    return parts;
}

std::vector<std::string_view> split(std::string_view text, std::string_view separator,
                                    int64_t most) {
    std::vector<std::string_view> parts;
    while (most < 0 || static_cast<int64_t>(parts.size()) < most) {
        const size_t found = find(text, separator);
        if (found == std::string_view::npos) break;
        parts.push_back(text.substr(0, found));
        text.remove_prefix(found + separator.size());
    }
    parts.push_back(text);
    return parts;
}

size_t find(std::string_view text, std::string_view part, size_t from) {
    if (from > text.size()) return std::string_view::npos;
    if (part.empty()) return from;
    const void *found = ::memmem(text.data() + from, text.size() - from, part.data(), part.size());
    if (found == nullptr) return std::string_view::npos;
    return static_cast<size_t>(static_cast<const char *>(found) - text.data());
}

size_t count(std::string_view text, std::string_view part) {
    size_t found = 0;
    for (size_t at = find(text, part); at != std::string_view::npos;
         at = find(text, part, at + part.size())) {
        ++found;
    }
    return found;
}

std::string replace(std::string_view text, std::string_view part, std::string_view by,
                    int64_t most) {
    std::string out;
    int64_t done = 0;
    const auto more = [&] { return most < 0 || done < most; };
    if (part.empty()) {
        size_t i = 0;
        for (; more(); ++done) {
            out += by;
            if (i == text.size()) break;
            const auto bytes = static_cast<size_t>(utf8_length(text[i]));
            out += text.substr(i, bytes);
            i += bytes;
        }
        return out += text.substr(i);
    }
    while (more()) {
        const size_t found = find(text, part);
        if (found == std::string_view::npos) break;
        out += text.substr(0, found);
        out += by;
        text.remove_prefix(found + part.size());
        ++done;
    }
    return out += text;
}

bool is_ascii(std::string_view text) {
    return std::all_of(text.begin(), text.end(),
                       [](char byte) { return static_cast<unsigned char>(byte) < 0x80; });
}

std::string_view cut(std::string_view text, size_t most) {
    if (text.size() <= most) return text;
    while (most > 0 && utf8_continues(text[most])) --most;
    return text.substr(0, most);
}

void append_repr(std::string_view text, std::string *out) {
    const bool single = text.find('\'') != std::string_view::npos;
    const bool both = single && text.find('"') != std::string_view::npos;
    const char quote = single && !both ? '"' : '\'';
    out->push_back(quote);
    for (size_t i = 0; i < text.size();) {
        int32_t bytes = 0;
        const uint32_t point = utf8_decode(text.data() + i, &bytes);
        const std::string_view character = text.substr(i, static_cast<size_t>(bytes));
        i += static_cast<size_t>(bytes);
        if (point == static_cast<unsigned char>(quote) || point == '\\') {
            out->push_back('\\');
            out->push_back(static_cast<char>(point));
        } else if (point == '\n' || point == '\r' || point == '\t') {
            *out += point == '\n' ? "\\n" : point == '\r' ? "\\r" : "\\t";
        } else if (is_printable(point)) {
            *out += character;
        } else if (point < 0x100) {
            *out += "\\x";
            append_hex(point, 2, out);
        } else if (point < 0x10000) {
            *out += "\\u";
            append_hex(point, 4, out);
        } else {
            *out += "\\U";
            append_hex(point, 8, out);
        }
    }
    out->push_back(quote);
}

void append_float(double value, std::string *out) {
    if (std::isnan(value) || std::isinf(value)) {
        *out += std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
        return;
    }
    // The fewest digits that read back the same, as in Python; the format is Python's own.
    char digits[40];
    const auto end =
        std::to_chars(digits, digits + sizeof digits, value, std::chars_format::scientific).ptr;
    const std::string_view text(digits, static_cast<size_t>(end - digits));
    const size_t e = text.find('e');
    const int exponent = std::stoi(std::string(text.substr(e + 1)));
    if (exponent < -4 || exponent >= 16) {
        *out += text; // both write at least two digits of the exponent
        return;
    }
    char fixed[400];
    const auto fixed_end =
        std::to_chars(fixed, fixed + sizeof fixed, value, std::chars_format::fixed).ptr;
    const std::string_view plain(fixed, static_cast<size_t>(fixed_end - fixed));
    *out += plain;
    if (plain.find('.') == std::string_view::npos) *out += ".0";
}

void append_json_string(std::string_view text, bool ensure_ascii, std::string *out) {
    out->push_back('"');
    for (size_t i = 0; i < text.size();) {
        int32_t bytes = 0;
        const uint32_t point = utf8_decode(text.data() + i, &bytes);
        const std::string_view character = text.substr(i, static_cast<size_t>(bytes));
        i += static_cast<size_t>(bytes);
        switch (point) {
        case '"':
            *out += "\\\"";
            continue;
        case '\\':
            *out += "\\\\";
            continue;
        case '\n':
            *out += "\\n";
            continue;
        case '\r':
            *out += "\\r";
            continue;
        case '\t':
            *out += "\\t";
            continue;
        case '\f':
            *out += "\\f";
            continue;
        case '\b':
            *out += "\\b";
            continue;
        default:
            break;
        }
        if (point >= 0x20 && (point < 0x7F || !ensure_ascii)) {
            *out += character;
        } else if (point < 0x10000) {
            *out += "\\u";
            append_hex(point, 4, out);
        } else {
            *out += "\\u";
            append_hex(0xD800 + ((point - 0x10000) >> 10), 4, out);
            *out += "\\u";
            append_hex(0xDC00 + (point & 0x3FF), 4, out);
        }
    }
    out->push_back('"');
}

std::string escape_html(std::string_view text) {
    std::string out;
    for (const char c : text) {
        switch (c) {
        case '&':
            out += "&amp;";
            break;
        case '<':
            out += "&lt;";
            break;
        case '>':
            out += "&gt;";
            break;
        case '\'':
            out += "&#39;";
            break;
        case '"':
            out += "&#34;";
            break;
        default:
            out += c;
        }
    }
    return out;
}

} // namespace batchllm::jinja
