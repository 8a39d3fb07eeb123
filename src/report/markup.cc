#include "report/markup.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace batchllm {
namespace {

constexpr uint32_t replacement = 0xFFFD;

// The next character and its length in bytes; U+FFFD and one byte if it is invalid.
uint32_t next_character(std::string_view text, size_t *bytes) {
    const auto at = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned char first = at(0);
    *bytes = 1;
    if (first < 0x80) return first;
    const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : first >= 0xC2 ? 2 : 0;
    if (length == 0 || first > 0xF4 || text.size() < length) return replacement;
    uint32_t character = first & (0xFFu >> (length + 1));
    for (size_t i = 1; i < length; ++i) {
        if ((at(i) & 0xC0) != 0x80) return replacement;
        character = character << 6 | (at(i) & 0x3Fu);
    }
    const uint32_t least = length == 4 ? 0x10000 : length == 3 ? 0x800 : 0x80;
    if (character < least || character > 0x10FFFF) return replacement;
    if (character >= 0xD800 && character < 0xE000) return replacement;
    *bytes = length;
    return character;
}

// Whether the character may appear in the page unchanged.
bool shown(uint32_t c) {
    if (c < 0x20 || (c >= 0x7F && c < 0xA0)) return false;
    if (c == 0x200E || c == 0x200F || c == 0x061C || c == 0xFEFF) return false;
    if ((c >= 0x2028 && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069)) return false;
    return (c & 0xFFFE) != 0xFFFE && !(c >= 0xFDD0 && c <= 0xFDEF);
}

int columns_of(uint32_t c) {
    const bool combining = (c >= 0x300 && c < 0x370) || (c >= 0x200B && c <= 0x200D);
    return combining ? 0 : c >= 0x1100 ? 2 : 1;
}

void append(std::string *out, std::string_view bytes, uint32_t c) {
    switch (c) {
    case '&':
        *out += "&amp;";
        return;
    case '<':
        *out += "&lt;";
        return;
    case '>':
        *out += "&gt;";
        return;
    case '"':
        *out += "&quot;";
        return;
    case '\'':
        *out += "&#39;";
        return;
    case '\n':
        *out += "\xE2\x86\xB5"; // an arrow, down and left
        return;
    case '\r':
        return;
    case '\t':
        *out += ' ';
        return;
    default:
        if (c == replacement || !shown(c)) {
            *out += "\xEF\xBF\xBD";
        } else {
            *out += bytes;
        }
    }
}

std::string printed(const char *format, double value) {
    std::array<char, 400> text{};
    const int written = std::snprintf(text.data(), text.size(), format, value);
    return {text.data(), static_cast<size_t>(std::max(0, written))};
}

} // namespace

std::string escaped(std::string_view text) {
    std::string out;
    out.reserve(text.size());
    while (!text.empty()) {
        size_t bytes = 0;
        const uint32_t c = next_character(text, &bytes);
        append(&out, text.substr(0, bytes), c);
        text.remove_prefix(bytes);
    }
    return out;
}

std::string escaped_within(std::string_view text, int columns) {
    std::string out, cut; // cut: the part that leaves room for "..."
    int used = 0;
    for (std::string_view left = text; !left.empty();) {
        size_t bytes = 0;
        const uint32_t c = next_character(left, &bytes);
        used += columns_of(c);
        if (used > columns) return columns < 4 ? std::string() : cut + "...";
        append(&out, left.substr(0, bytes), c);
        if (used <= columns - 3) cut = out;
        left.remove_prefix(bytes);
    }
    return out;
}

std::string number_cell(const std::string &text) { return "<td class=\"n\">" + text + "</td>"; }

std::string fixed(double value, int digits) {
    if (!std::isfinite(value)) return "-";
    const std::string format = "%." + std::to_string(digits) + "f";
    return printed(format.c_str(), value);
}

std::string coordinate(double value) {
    std::string text = fixed(value, 2);
    while (text.ends_with('0')) text.pop_back();
    if (text.ends_with('.')) text.pop_back();
    return text == "-0" ? "0" : text;
}

std::string short_count(double value) {
    constexpr std::array<const char *, 5> units = {"", "K", "M", "G", "T"};
    size_t unit = 0;
    while (std::abs(value) >= 999.5 && unit + 1 < units.size()) {
        value /= 1000;
        ++unit;
    }
    std::string text = fixed(value, std::abs(value) >= 99.95 ? 0 : 1);
    if (text.ends_with(".0")) text.resize(text.size() - 2);
    return text + units[unit];
}

std::string seconds_text(double seconds) {
    if (!std::isfinite(seconds)) return "-";
    if (seconds < 0.9995)
        return fixed(seconds * 1e3, seconds < 0.01 && seconds > 0 ? 2 : 0) + " ms";
    if (seconds < 99.95) return fixed(seconds, seconds < 9.995 ? 2 : 1) + " s";
    const auto whole = static_cast<int64_t>(std::llround(seconds));
    std::array<char, 64> text{};
    if (whole < 3600) {
        std::snprintf(text.data(), text.size(), "%lld min %02lld s",
                      static_cast<long long>(whole / 60), static_cast<long long>(whole % 60));
    } else {
        std::snprintf(text.data(), text.size(), "%lld h %02lld min",
                      static_cast<long long>(whole / 3600),
                      static_cast<long long>(whole / 60 % 60));
    }
    return text.data();
}

std::string percent_text(double share) { return fixed(100 * share, 1) + " %"; }

} // namespace batchllm
