// An adapter's tile, loaded at once.
#pragma once

#include "adapters/adapters.h"

namespace batchllm::cuda {

__device__ __forceinline__ AdapterTile load_tile(const AdapterTile *from) {
    const uint4 words = __ldg(reinterpret_cast<const uint4 *>(from));
    AdapterTile tile;
    tile.entries = reinterpret_cast<const AdapterEntry *>(uint64_t{words.y} << 32 | words.x);
    tile.begin = static_cast<int32_t>(words.z);
    tile.count = static_cast<int32_t>(words.w);
    return tile;
}

} // namespace batchllm::cuda
