// Conversions between float and the bits of bfloat16, float16 and e4m3.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace batchllm {

constexpr float bfloat16_to_float(uint16_t x) { return std::bit_cast<float>(uint32_t{x} << 16); }

// Rounds to nearest, ties to even; a NaN stays a NaN.
constexpr uint16_t float_to_bfloat16(float x) {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
    return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

constexpr float float16_to_float(uint16_t x) {
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

// Rounds to nearest, ties to even; what is too large becomes infinite, a NaN stays a NaN.
constexpr uint16_t float_to_float16(float x) {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    const uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u);
    if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);
    if (magnitude < 0x38800000u) { // below 2^-14: a multiple of 2^-24, to which adding 0.5 rounds
        const float rounded = std::bit_cast<float>(magnitude) + 0.5f;
        return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(rounded) - 0x3F000000u));
    }
    const uint32_t shifted = magnitude - 0x38000000u; // the exponent's bias of float16
    return static_cast<uint16_t>(sign | ((shifted + 0xFFFu + (shifted >> 13 & 1u)) >> 13));
}

// float8_e4m3fn: a sign bit, four exponent bits (bias 7), three fraction bits; no infinities, 0x7F
// is NaN.
constexpr float e4m3_to_float(uint8_t x) {
    const int exponent = (x >> 3) & 15;
    const int fraction = x & 7;
    if (exponent == 15 && fraction == 7) return __builtin_nanf("");
    float value = static_cast<float>(exponent == 0 ? fraction : fraction + 8);
    value *= static_cast<float>(1 << (exponent == 0 ? 0 : exponent - 1)) * 0x1p-9f;
    return (x & 0x80) != 0 ? -value : value;
}

constexpr float kMostE4m3 = 448;

inline constexpr std::array<float, 256> kE4m3Floats = [] {
    std::array<float, 256> floats{};
    for (size_t i = 0; i < floats.size(); ++i) floats[i] = e4m3_to_float(static_cast<uint8_t>(i));
    return floats;
}();

// A scale of the MX formats: a power of two; 0xFF is NaN.
constexpr float e8m0_to_float(uint8_t x) {
    if (x == 0xFF) return __builtin_nanf("");
    return x == 0 ? 0x1p-127f : std::bit_cast<float>(uint32_t{x} << 23);
}

} // namespace batchllm
