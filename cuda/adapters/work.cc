#include "adapters/work.h"

#include <algorithm>

namespace batchllm::cuda {

void AdapterLists::list(std::span<const int32_t> slots,
                        std::span<const AdapterEntry *const> of_slots, bool short_alone) {
    ends_.assign(of_slots.size(), 0);
    for (const int32_t slot : slots) {
        if (slot >= 0) ++ends_[static_cast<size_t>(slot)];
    }
    int32_t total = 0, used = 0;
    for (int32_t &end : ends_) {
        used += end > 0 ? 1 : 0;
        const int32_t count = end;
        end = total;
        total += count;
    }
    rows.resize(static_cast<size_t>(total));
    for (size_t row = 0; row < slots.size(); ++row) {
        if (slots[row] < 0) continue;
        rows[static_cast<size_t>(ends_[static_cast<size_t>(slots[row])]++)] =
            static_cast<int32_t>(row);
    }
    entries.clear();
    for (const int32_t slot : slots) {
        entries.push_back(slot < 0 ? nullptr : of_slots[static_cast<size_t>(slot)]);
    }
    // Few rows are for many CTAs rather.
    tall = !short_alone && total >= 2048 && total >= kTallTile / 2 * used;
    const int32_t height = tall ? kTallTile : kShortTile;
    tiles.clear();
    int32_t begin = 0;
    for (size_t slot = 0; slot < of_slots.size(); ++slot) {
        const int32_t end = ends_[slot];
        for (; begin < end; begin += std::min(height, end - begin)) {
            tiles.push_back({of_slots[slot], begin, std::min(height, end - begin)});
        }
    }
    list_blocks();
}

void AdapterLists::list_blocks() {
    constexpr size_t wide = kAdapterBlock;
    const size_t blocks = (entries.size() + wide - 1) / wide;
    block_counts.assign(blocks, 0);
    block_entries.assign(blocks * wide, nullptr);
    for (size_t row = 0; row < entries.size(); ++row) {
        const AdapterEntry *const own = entries[row];
        if (own == nullptr || (row % wide != 0 && own == entries[row - 1])) continue;
        const AdapterEntry **const first = block_entries.data() + row / wide * wide;
        int32_t &count = block_counts[row / wide];
        if (std::find(first, first + count, own) == first + count) first[count++] = own;
    }
}

} // namespace batchllm::cuda
