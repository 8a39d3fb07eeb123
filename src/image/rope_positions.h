// Which positions ropes with several axes (M-RoPE) give to a row's tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "image/picture.h"

namespace batchllm {

// A picture in a row. Its tokens are consecutive.
struct PicturePlace {
    int32_t first = 0; // index in the row of its first token
    PictureGrid grid;
};

// Text counts up on all axes. The tokens of a picture that begins at position p have time p, row p + y
// and column p + x, where y and x count tokens, and what follows goes on at p + the longer side: so a
// token's position depends on the pictures before it and not on its index alone. As get_rope_index of
// Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5 in transformers.
class RopePositions {
  public:
    // The pictures in the order of the row.
    explicit RopePositions(std::span<const PicturePlace> pictures);

    RopePosition at(int32_t index) const;
    // The index of a token of text less its position, for tokens behind all pictures.
    int32_t shortened() const { return places_.empty() ? 0 : places_.back().shortened; }

  private:
    struct Place {
        int32_t begin, end; // indices of its tokens
        int32_t columns;    // tokens in a row of the picture
        int32_t position;   // of its first token
        int32_t shortened;  // index less position of the text behind it
    };
    std::vector<Place> places_;
};

} // namespace batchllm
