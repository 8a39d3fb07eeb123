// A picture as a model's tower reads it: patches, each the values of a square of pixels.
#pragma once

#include <cstdint>
#include <vector>

namespace batchllm {

// What is known of a picture from its size alone.
struct PictureGrid {
    int32_t rows = 0, columns = 0; // patches
    int32_t merge = 1;             // a token stands for merge x merge patches
    int32_t tokens = 0;            // of the prompt whose embeddings the tower makes

    bool operator==(const PictureGrid &) const = default;
};

struct PreparedPicture {
    PictureGrid grid;
    // [rows * columns, values of a patch], in the order in which the tower reads them. Qwen: blocks of
    // merge x merge patches, row by row, also inside a block; the others: row by row. The values of a
    // patch are [3, height, width], of Gemma 4 [height, width, 3]. Where the tower takes frames in pairs
    // (Qwen), both are this one.
    std::vector<float> patches;
};

// In the tokens of rows, plans and prefixes, ids from here on are pictures: above any vocabulary.
constexpr int32_t first_picture_id = 1 << 30;

// Where a token is for ropes with several axes (Rope::axes); see rope_positions.h.
struct RopePosition {
    int32_t time, row, column;

    bool operator==(const RopePosition &) const = default;
};

} // namespace batchllm
