// Code point -> general category, and character class as the reference's regular expressions define
// it (Unicode 16).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string_view>

#include "text/code_point_table.h"

namespace batchllm {

// "Lu", "Nd", ...; "Cn": not assigned.
std::string_view unicode_category(uint32_t point);

// Calls each(first, last, category) for ascending ranges that cover every code point.
void for_each_category(const std::function<void(uint32_t, uint32_t, std::string_view)> &each);

// Calls each(first, last, script) for the ranges of the scripts that expressions of tokenizers name: Han, Hiragana,
// Katakana, Hangul, Latin, Greek, Cyrillic, Arabic, Hebrew, Devanagari and Thai.
void for_each_script(const std::function<void(uint32_t, uint32_t, std::string_view)> &each);

// Bits of a character's class.
inline constexpr uint16_t kLetter = 1;    // \p{L}
inline constexpr uint16_t kNumber = 2;    // \p{N}
inline constexpr uint16_t kSpace = 4;     // \s
inline constexpr uint16_t kWord = 8;      // \w
inline constexpr uint16_t kMark = 16;     // \p{M}
inline constexpr uint16_t kNumeric = 128; // a number in Unicode 17, which Digits uses
inline constexpr uint16_t kUpper = 256;   // \p{Lu} and \p{Lt}
inline constexpr uint16_t kLower = 512;   // \p{Ll}
inline constexpr uint16_t kNewline = 32;  // [\r\n]
inline constexpr uint16_t kNfcMaybe = 64; // NFC may change it or the character before

class UnicodeClasses {
  public:
    UnicodeClasses();

    uint16_t ascii(char byte) const { return ascii_[static_cast<unsigned char>(byte)]; }
    uint16_t of(uint32_t point) const { return table_.of(point); }

  private:
    std::array<uint16_t, 128> ascii_;
    CodePointTable<uint16_t> table_;
};

// Built on first use, then shared and never changed.
const UnicodeClasses &unicode_classes();

} // namespace batchllm
