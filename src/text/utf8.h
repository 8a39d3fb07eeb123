// UTF-8 <-> code points. Input must be valid UTF-8: check untrusted text first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace batchllm {

// How many bytes the character that starts with this byte has.
inline int32_t utf8_length(char lead) {
    const auto byte = static_cast<unsigned char>(lead);
    return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

inline bool utf8_continues(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

// The character at p; *length is its size in bytes.
inline uint32_t utf8_decode(const char *p, int32_t *length) {
    const auto byte = [p](int i) { return uint32_t{static_cast<unsigned char>(p[i])}; };
    const uint32_t lead = byte(0);
    if (lead < 0x80) {
        *length = 1;
        return lead;
    }
    if (lead < 0xE0) {
        *length = 2;
        return (lead & 0x1F) << 6 | (byte(1) & 0x3F);
    }
    if (lead < 0xF0) {
        *length = 3;
        return (lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    }
    *length = 4;
    return (lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
}

// Start of the character that ends before p. p must not be the start of the text.
inline const char *utf8_previous(const char *p) {
    do --p;
    while (utf8_continues(*p));
    return p;
}

inline void utf8_append(uint32_t point, std::string *out) {
    const auto put = [out](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
    if (point < 0x80) {
        put(point);
    } else if (point < 0x800) {
        put(0xC0 | point >> 6);
        put(0x80 | (point & 0x3F));
    } else if (point < 0x10000) {
        put(0xE0 | point >> 12);
        put(0x80 | (point >> 6 & 0x3F));
        put(0x80 | (point & 0x3F));
    } else {
        put(0xF0 | point >> 18);
        put(0x80 | (point >> 12 & 0x3F));
        put(0x80 | (point >> 6 & 0x3F));
        put(0x80 | (point & 0x3F));
    }
}

// U+FFFD, which replaces invalid bytes.
inline constexpr char kReplacementCharacter[] = "\xEF\xBF\xBD";

} // namespace batchllm
