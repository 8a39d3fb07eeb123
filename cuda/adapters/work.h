// Which rows of a step have which adapter -> the lists that the launches go by (adapters.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "adapters/adapters.h"

namespace batchllm::cuda {

struct AdapterLists {
    std::vector<int32_t> rows; // that have one, by slot, ascending within it
    std::vector<AdapterTile> tiles;
    std::vector<const AdapterEntry *> entries; // of each row, or null
    bool tall = false;                         // AdapterWork's
    std::vector<int32_t> block_counts;         // AdapterWork's
    std::vector<const AdapterEntry *> block_entries;

    // slots: of each row, or -1: none. of_slots: [slots].
    // short_alone: whatever rows there are, a row's sums are in one order.
    void list(std::span<const int32_t> slots, std::span<const AdapterEntry *const> of_slots,
              bool short_alone);

  private:
    void list_blocks();

    std::vector<int32_t> ends_; // [slots] in rows
};

} // namespace batchllm::cuda
