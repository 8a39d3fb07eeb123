// Work of the grouped products: the turns of one expert, kTileRows at a time. And how gate and up stand in W.
#pragma once

#include <cstdint>

namespace batchllm::cuda {

inline constexpr int32_t kTileRows = 128;
inline constexpr int32_t kGateRows = 8; // of gate, then of up, by turns
// Hopper's products: an expert's tiles are equal, by so many turns.
inline constexpr int32_t kTurnStep = 16;

// A tile of an expert, which has the turns [begin, end); first: the number of the expert's first tile. The
// expert's tiles follow one another; which turns each has is the product's choice.
struct alignas(16) ExpertTile {
    int32_t expert, begin, end, first;
};

// Whatever the routing is: a tile of every expert that is not full, and the full ones.
inline int64_t most_tiles(int64_t turns, int64_t experts) { return turns / kTileRows + experts; }

} // namespace batchllm::cuda
