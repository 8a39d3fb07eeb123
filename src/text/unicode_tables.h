// The generated tables (unicode_tables.inc) and the shape of their rows.
#pragma once

#include <cstdint>

namespace batchllm {

struct ClassRange {
    uint32_t first;
    uint32_t last;
    uint16_t value;
};

struct Decomposition {
    uint32_t composed;
    uint32_t first;
    uint32_t second; // 0: decomposes into one character
    uint8_t composes;
};

namespace unicode_tables {
#include "text/unicode_tables.inc"
} // namespace unicode_tables

} // namespace batchllm
