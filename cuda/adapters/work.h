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
    bool tall = false; // most tiles are taller than kShortTile

    // slots: of each row, or -1: none. entries: of each slot.
    void list(std::span<const int32_t> slots, std::span<const AdapterEntry *const> entries);

  private:
    std::vector<int32_t> ends_; // [slots] in rows
};

} // namespace batchllm::cuda
