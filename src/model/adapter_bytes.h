// The two passes over an adapter's bytes, for callers that have them in the processor's cache: as fast as it can.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/dtype.h"

namespace batchllm {

// As XXH3_128bits_update. state: an XXH3_state_t, which has a name of its own in each file.
void add_to_hash(void *state, const std::byte *bytes, size_t size);

// Whether numbers of any alignment are finite. type: f32, f16 or bf16.
bool all_finite(const std::byte *numbers, int64_t count, DType type);

namespace avx2 { // the same, where the processor has it
void add_to_hash(void *state, const std::byte *bytes, size_t size);
bool all_finite(const std::byte *numbers, int64_t count, DType type);
} // namespace avx2

// Of each file that includes this one, with its instructions.
template <typename Bits>
static bool lacks_exponent(const std::byte *numbers, int64_t count, Bits exponent) {
    Bits found = 0; // no bool: compilers make vectors of this
    for (int64_t i = 0; i < count; ++i) {
        Bits bits;
        std::memcpy(&bits, numbers + i * static_cast<int64_t>(sizeof bits), sizeof bits);
        found |= static_cast<Bits>((bits & exponent) == exponent ? -1 : 0);
    }
    return found == 0;
}
static inline bool are_finite(const std::byte *numbers, int64_t count, DType type) {
    if (type == DType::f32) return lacks_exponent<uint32_t>(numbers, count, 0x7F800000U);
    return lacks_exponent<uint16_t>(numbers, count, type == DType::bf16 ? 0x7F80U : 0x7C00U);
}

} // namespace batchllm
