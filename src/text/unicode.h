// Code point to character class, as the reference's regular expressions see it (Unicode 16).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace batchllm {

// Bits of a character's class. All but two are numbered as in unicode_tables.inc.
inline constexpr uint8_t kLetter = 1;    // \p{L}
inline constexpr uint8_t kNumber = 2;    // \p{N}
inline constexpr uint8_t kSpace = 4;     // \s
inline constexpr uint8_t kWord = 8;      // \w
inline constexpr uint8_t kMark = 16;     // \p{M}
inline constexpr uint8_t kNumeric = 128; // a number by Unicode 17, which Digits goes by
inline constexpr uint8_t kNewline = 32;  // [\r\n]; set at start-up
inline constexpr uint8_t kNfcMaybe = 64; // NFC may change it or what stands before it; likewise

class UnicodeClasses {
  public:
    UnicodeClasses();

    uint8_t ascii(char byte) const { return ascii_[static_cast<unsigned char>(byte)]; }
    uint8_t of(uint32_t point) const {
        return blocks_[size_t{index_[point >> 7]} * 128 + (point & 127)];
    }

  private:
    std::array<uint8_t, 128> ascii_;
    std::vector<uint16_t> index_; // [0x110000 / 128] which block holds these 128 code points
    std::vector<uint8_t> blocks_; // equal blocks are kept once
};

// Built on first use, the same for everyone, never changed.
const UnicodeClasses &unicode_classes();

} // namespace batchllm
