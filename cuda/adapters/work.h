// Which rows of a step have which adapter -> the lists that the launches go by (adapters.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "adapters/adapters.h"

namespace batchllm::cuda {

struct AdapterLists {
    std::vector<int32_t> rows;                 // that have one, by slot, ascending within it
    std::vector<AdapterTile> tiles;            // those of few rows first
    int32_t few = 0;                           // of the tiles
    std::vector<const AdapterEntry *> entries; // of each row, or null
    std::vector<uint8_t> in_others;            // AdapterWork's
    bool tall = false;                         // AdapterWork's
    std::vector<int32_t> block_counts;         // AdapterWork's
    std::vector<const AdapterEntry *> block_entries;

    // slots: of each row, or -1: none. of_slots: [slots].
    // short_alone: whatever rows there are, a row's sums are in one order. Set for f32, too, which has no launches for few rows.
    void list(std::span<const int32_t> slots, std::span<const AdapterEntry *const> of_slots,
              bool short_alone);

  private:
    void list_blocks();
    // Tiles of the slots that have from least to most rows.
    void cut(std::span<const AdapterEntry *const> of_slots, int32_t height, int32_t least,
             int32_t most);

    std::vector<int32_t> ends_; // [slots] in rows
};

} // namespace batchllm::cuda
