// The generated tables (unicode_tables.inc) and the shape of their rows.
#pragma once

#include <cstdint>

namespace batchllm {

// Code points from `first` up to the next row's.
struct CategoryRun {
    uint32_t first;
    char categories[5]; // "Lu"; "LuLl": the two take turns
};

struct ScriptRange {
    uint32_t first;
    uint32_t last;
    const char *script;
};

struct ValueRange {
    uint32_t first;
    uint32_t last;
    uint8_t value;
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
