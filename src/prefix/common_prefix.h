// Two token runs -> how many leading tokens they have in common.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace batchllm {

// At most `length`; both runs have at least that many tokens. Compares eight tokens at a time,
// because the speed of planning is bound by how fast rows can be read.
inline int32_t common_prefix(const int32_t *a, const int32_t *b, int32_t length) {
    static_assert(std::endian::native == std::endian::little);
    if (a == b) return length;
    const auto differ = [&](int32_t at) {
        uint64_t x, y;
        std::memcpy(&x, a + at, sizeof x);
        std::memcpy(&y, b + at, sizeof y);
        return x ^ y;
    };
    int32_t i = 0;
    while (length - i >= 8) {
        if ((differ(i) | differ(i + 2) | differ(i + 4) | differ(i + 6)) != 0) break;
        i += 8;
    }
    for (; length - i >= 2; i += 2) {
        const uint64_t difference = differ(i);
        if (difference != 0) return i + std::countr_zero(difference) / 32;
    }
    if (i < length && a[i] == b[i]) ++i;
    return i;
}

} // namespace batchllm
