// Scales of products in e4m3, as cuBLASLt has them on devices of 9.0.
#pragma once

#include <cstdint>

namespace batchllm::cuda {

// What one scale is of.
enum class Scaling : uint8_t {
    none,   // there are none: elements are of the compute type
    rows,   // a row of W; a row of x
    blocks, // kScaleBlock x kScaleBlock of W; kScaleBlock elements of a row of x
    turns, // of x alone, for experts (experts/grouped.h): as blocks has it, a row's scales side by side
    whole_turns, // the same, a scale a row
};
inline constexpr int64_t kScaleBlock = 128;
// Scales of a row of x, the last one's columns may be fewer.
constexpr int64_t scale_groups(int64_t columns) {
    return (columns + kScaleBlock - 1) / kScaleBlock;
}

// Distance of the scales of two rows of blocks.
constexpr int64_t block_scale_stride(int64_t columns) {
    return (scale_groups(columns) + 3) / 4 * 4;
}

// Whether W can be of this shape, as far as its shape goes.
constexpr bool takes_e4m3(int64_t rows, int64_t columns, Scaling scaling) {
    return rows % 16 == 0 && columns % (scaling == Scaling::blocks ? kScaleBlock : 16) == 0;
}

} // namespace batchllm::cuda
