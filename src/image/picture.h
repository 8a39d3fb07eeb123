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
    // [rows * columns, values of a patch], the patches in the order in which the tower reads them.
    std::vector<float> patches;
};

} // namespace batchllm
