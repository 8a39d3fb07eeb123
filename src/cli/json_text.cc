#include "cli/json_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/json_escape.h"

namespace batchllm::cli {
namespace {

// Length of the well-formed UTF-8 character at the start of text; 0 if there is none.
size_t character_length(std::string_view text) {
    const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned char lead = byte(0);
    if (lead < 0x80) return 1;
    const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return 0;
    for (size_t i = 1; i < length; ++i) {
        if ((byte(i) & 0xC0) != 0x80) return 0;
    }
    if ((lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xED && byte(1) >= 0xA0) ||
        (lead == 0xF0 && byte(1) < 0x90) || (lead == 0xF4 && byte(1) >= 0x90)) {
        return 0;
    }
    return length;
}

std::string repaired(std::string_view text) {
    std::string out;
    while (!text.empty()) {
        const size_t length = character_length(text);
        if (length == 0) {
            out += "\xEF\xBF\xBD";
            text.remove_prefix(1);
        } else {
            out += text.substr(0, length);
            text.remove_prefix(length);
        }
    }
    return out;
}

template <typename T> void append_number(std::string *out, T value) {
    char buffer[32];
    const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
    out->append(buffer, end);
}

} // namespace

void append_json(std::string *out, std::string_view text) {
    *out += '"';
    if (is_utf8(text)) {
        append_json_escaped(out, text);
    } else {
        append_json_escaped(out, repaired(text));
    }
    *out += '"';
}

void append_json_integer(std::string *out, int64_t value) { append_number(out, value); }
void append_json_integer(std::string *out, uint64_t value) { append_number(out, value); }

void append_json(std::string *out, float value) {
    if (std::isfinite(value)) {
        append_number(out, value);
    } else {
        *out += "null";
    }
}

void append_json(std::string *out, double value) {
    if (std::isfinite(value)) {
        append_number(out, value);
    } else {
        *out += "null";
    }
}

void append_json_base64(std::string *out, std::span<const std::byte> bytes) {
    constexpr std::string_view alphabet =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    *out += '"';
    for (size_t i = 0; i < bytes.size(); i += 3) {
        const size_t count = std::min<size_t>(3, bytes.size() - i);
        uint32_t bits = 0;
        for (size_t k = 0; k < 3; ++k) {
            bits = bits << 8 | (k < count ? std::to_integer<uint32_t>(bytes[i + k]) : 0);
        }
        for (size_t k = 0; k < 4; ++k) {
            *out += k <= count ? alphabet[bits >> (18 - 6 * k) & 63] : '=';
        }
    }
    *out += '"';
}

} // namespace batchllm::cli
