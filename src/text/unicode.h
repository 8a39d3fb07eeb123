// Code point -> character class, as the reference's regular expressions define it (Unicode 16).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace batchllm {

// Bits of a character's class, numbered as in unicode_tables.inc, except for the last two.
inline constexpr uint16_t kLetter = 1;    // \p{L}
inline constexpr uint16_t kNumber = 2;    // \p{N}
inline constexpr uint16_t kSpace = 4;     // \s
inline constexpr uint16_t kWord = 8;      // \w
inline constexpr uint16_t kMark = 16;     // \p{M}
inline constexpr uint16_t kNumeric = 128; // a number in Unicode 17, which Digits uses
inline constexpr uint16_t kUpper = 256;   // \p{Lu} and \p{Lt}
inline constexpr uint16_t kLower = 512;   // \p{Ll}
inline constexpr uint16_t kNewline = 32;  // [\r\n]; set at start-up
inline constexpr uint16_t kNfcMaybe = 64; // NFC may change it or the character before; set at
                                          // start-up

class UnicodeClasses {
  public:
    UnicodeClasses();

    uint16_t ascii(char byte) const { return ascii_[static_cast<unsigned char>(byte)]; }
    uint16_t of(uint32_t point) const {
        return blocks_[size_t{index_[point >> 7]} * 128 + (point & 127)];
    }

  private:
    std::array<uint16_t, 128> ascii_;
    std::vector<uint16_t> index_;  // [0x110000 / 128] which block holds these 128 code points
    std::vector<uint16_t> blocks_; // equal blocks are stored once
};

// Built on first use, then shared and never changed.
const UnicodeClasses &unicode_classes();

} // namespace batchllm
