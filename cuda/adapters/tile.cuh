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

__device__ __forceinline__ const AdapterEntry *load_entry(const AdapterEntry *const *from) {
    return reinterpret_cast<const AdapterEntry *>(
        __ldg(reinterpret_cast<const unsigned long long *>(from)));
}
__device__ __forceinline__ AdapterPart load_part(const AdapterEntry *entry, int part) {
    const int4 words = __ldg(reinterpret_cast<const int4 *>(entry->parts + part));
    return {words.x, words.y, words.z, __int_as_float(words.w)};
}

// The first of the tiles that are not of few rows.
__device__ __forceinline__ const AdapterTile *tiles_after_few(const AdapterWork &work) {
    return work.tiles + (work.few_count != nullptr ? __ldg(work.few_count) : 0);
}

__device__ __forceinline__ int32_t count_of_all_tiles(const AdapterWork &work) {
    return __ldg(work.tile_count) + (work.few_count != nullptr ? __ldg(work.few_count) : 0);
}

// What t's column is multiplied with.
__device__ __forceinline__ float scale_of(const AdapterEntry &entry, int parts, int32_t column) {
    for (int p = 0; p < parts; ++p) {
        const AdapterPart part = load_part(&entry, p);
        if (static_cast<uint32_t>(column - part.first) < static_cast<uint32_t>(part.rank)) {
            return part.scale;
        }
    }
    return 0;
}

// The row at a place of a list, or -1: it is not one of those to be computed.
__device__ __forceinline__ int32_t row_at(const AdapterArguments &a, int32_t place) {
    const int32_t row = a.work.rows != nullptr ? __ldg(a.work.rows + place) : place;
    const bool outside = a.some_rows > 0 && static_cast<uint32_t>(row - a.first_row) >=
                                                static_cast<uint32_t>(a.some_rows);
    return outside ? -1 : row;
}
// Of x.
__device__ __forceinline__ int32_t row_of_x(const AdapterArguments &a, int32_t place) {
    return a.x_rows != nullptr ? __ldg(a.x_rows + place) : row_at(a, place);
}

} // namespace batchllm::cuda
