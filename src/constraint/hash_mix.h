// Mixes one more value into the hash of a table's key. Not stable across versions: never written to a file.
#pragma once

#include <cstdint>

namespace batchllm {

inline uint64_t hash_mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * 0x9E3779B97F4A7C15U;
    return hash ^ hash >> 29;
}

} // namespace batchllm
