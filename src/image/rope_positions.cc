#include "image/rope_positions.h"

#include <algorithm>

namespace batchllm {

RopePositions::RopePositions(std::span<const PicturePlace> pictures) {
    places_.reserve(pictures.size());
    int32_t shortened = 0;
    for (const PicturePlace &picture : pictures) {
        const PictureGrid &grid = picture.grid;
        const int32_t rows = grid.rows / grid.merge, columns = grid.columns / grid.merge;
        const int32_t begin = picture.first, end = begin + grid.tokens;
        const int32_t position = begin - shortened;
        shortened = end - (position + std::max(rows, columns));
        places_.push_back({begin, end, columns, position, shortened});
    }
}

RopePosition RopePositions::at(int32_t index) const {
    auto next = std::upper_bound(places_.begin(), places_.end(), index,
                                 [](int32_t i, const Place &place) { return i < place.begin; });
    if (next == places_.begin()) return {index, index, index};
    const Place &place = *--next;
    if (index >= place.end) {
        const int32_t position = index - place.shortened;
        return {position, position, position};
    }
    const int32_t token = index - place.begin;
    return {place.position, place.position + token / place.columns,
            place.position + token % place.columns};
}

} // namespace batchllm
