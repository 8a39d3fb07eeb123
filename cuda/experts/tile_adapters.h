// The adapters of a tile's turns (experts/tile.h).
#pragma once

#include <cstdint>

#include "adapters/adapters.h"
#include "experts/tile.h"

namespace batchllm::cuda {

inline constexpr uint8_t kNoAdapter = 255;

struct alignas(16) TileAdapters {
    int32_t count; // of adapters
    int32_t unused[3];
    // Turn t's, at [t % 8][t / 8]: its number among the tile's, or kNoAdapter.
    uint8_t of_turn[8][kTileRows / 8];
    const AdapterEntry *entries[kTileRows]; // AdapterTile's
};

} // namespace batchllm::cuda
