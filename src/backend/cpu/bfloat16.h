// bfloat16 and float16 as they lie in memory, to and from float.
#pragma once

#include <bit>
#include <cstdint>

namespace batchllm::cpu {

inline float bfloat16_to_float(uint16_t x) { return std::bit_cast<float>(uint32_t{x} << 16); }

// Rounds to nearest, ties to even; a NaN stays one.
inline uint16_t float_to_bfloat16(float x) {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
    return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

inline float float16_to_float(uint16_t x) {
    const uint32_t sign = uint32_t{x & 0x8000u} << 16;
    const uint32_t exponent = (x >> 10) & 31u;
    const uint32_t fraction = x & 0x3FFu;
    if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000u | (fraction << 13));
    if (exponent == 0) { // zero or subnormal: fraction * 2^-24
        const float value = static_cast<float>(fraction) * 0x1p-24f;
        return sign != 0 ? -value : value;
    }
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
}

} // namespace batchllm::cpu
