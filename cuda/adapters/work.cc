#include "adapters/work.h"

#include <algorithm>

namespace batchllm::cuda {

void AdapterLists::list(std::span<const int32_t> slots,
                        std::span<const AdapterEntry *const> of_slots, bool short_alone) {
    ends_.assign(of_slots.size(), 0);
    for (const int32_t slot : slots) {
        if (slot >= 0) ++ends_[static_cast<size_t>(slot)];
    }
    // Of few of them the others' launches are not slower by as much as two more launches take.
    constexpr int64_t least_few = 32;
    const auto is_few = [](int32_t count) { return count > 0 && count <= kFewRows; };
    const bool with_few =
        !short_alone && std::count_if(ends_.begin(), ends_.end(), is_few) >= least_few;
    int32_t total = 0, used = 0, of_others = 0;
    for (int32_t &end : ends_) {
        const int32_t count = end;
        if (count > 0 && !(with_few && is_few(count))) ++used, of_others += count;
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
    tall = !short_alone && of_others >= 2048 && of_others >= kTallTile / 2 * used;
    tiles.clear();
    if (with_few) cut(of_slots, kFewRows, 1, kFewRows);
    few = static_cast<int32_t>(tiles.size());
    cut(of_slots, tall ? kTallTile : kShortTile, with_few ? kFewRows + 1 : 1, total);
    in_others.assign(slots.size(), 0);
    for (auto tile = tiles.begin() + few; tile != tiles.end(); ++tile) {
        for (int32_t i = 0; i < tile->count; ++i) {
            in_others[static_cast<size_t>(rows[static_cast<size_t>(tile->begin + i)])] = 1;
        }
    }
    list_blocks();
}

void AdapterLists::cut(std::span<const AdapterEntry *const> of_slots, int32_t height, int32_t least,
                       int32_t most) {
    int32_t begin = 0;
    for (size_t slot = 0; slot < of_slots.size(); ++slot) {
        const int32_t end = ends_[slot];
        if (end - begin < least || end - begin > most) begin = end;
        for (; begin < end; begin += std::min(height, end - begin)) {
            tiles.push_back({of_slots[slot], begin, std::min(height, end - begin)});
        }
    }
}

// Adapters that come one after another are, where they can be, of rows of different warps: a stage that has some of them
// (gated/sm90.cu) is then for many warps.
void AdapterLists::list_blocks() {
    constexpr size_t wide = kAdapterBlock, of_warp = 16, warps = wide / of_warp;
    const size_t blocks = (entries.size() + wide - 1) / wide;
    block_counts.assign(blocks, 0);
    block_entries.assign(blocks * wide, nullptr);
    for (size_t block = 0; block < blocks; ++block) {
        const AdapterEntry **const first = block_entries.data() + block * wide;
        int32_t &count = block_counts[block];
        for (size_t i = 0; i < wide; ++i) {
            const size_t row = block * wide + i % warps * of_warp + i / warps;
            const AdapterEntry *const own = row < entries.size() ? entries[row] : nullptr;
            if (own == nullptr || (i / warps > 0 && own == entries[row - 1])) continue;
            if (std::find(first, first + count, own) == first + count) first[count++] = own;
        }
    }
}

} // namespace batchllm::cuda
