// A pair of adjacent tokens -> the token that they merge into, and the rank of the merge.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace batchllm {

struct Merge {
    uint32_t rank; // lower merges first
    int32_t token; // what the pair becomes
};

inline constexpr uint32_t kNoMerge = UINT32_MAX; // rank of a pair that does not merge

class MergeTable {
  public:
    // Room for this many pairs.
    explicit MergeTable(size_t pairs = 0);

    // If a pair is inserted twice, the later merge counts.
    void insert(int32_t left, int32_t right, Merge merge);

    Merge find(int32_t left, int32_t right) const {
        const uint64_t key = key_of(left, right);
        size_t slot = hash(key);
        while (true) {
            const Slot &entry = slots_[slot];
            if (entry.key == key) return entry.merge;
            if (entry.key == kFree) return {kNoMerge, -1};
            slot = (slot + 1) & mask_;
        }
    }

  private:
    static constexpr uint64_t kFree = UINT64_MAX; // not a key: ids are never negative
    struct Slot {
        uint64_t key = kFree;
        Merge merge{};
    };
    static uint64_t key_of(int32_t left, int32_t right) {
        return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
    }
    size_t hash(uint64_t key) const {
        return static_cast<size_t>((key * 0x9E3779B97F4A7C15u) >> shift_);
    }

    std::vector<Slot> slots_; // open addressing, at most half full
    size_t mask_;
    uint32_t shift_;
};

} // namespace batchllm
