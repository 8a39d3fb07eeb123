#include "text/merge_table.h"

#include <bit>

namespace batchllm {

MergeTable::MergeTable(size_t pairs) {
    const size_t size = std::bit_ceil(pairs * 2 + 2);
    slots_.resize(size);
    mask_ = size - 1;
    shift_ = 64 - static_cast<uint32_t>(std::countr_zero(size));
}

void MergeTable::insert(int32_t left, int32_t right, Merge merge) {
    const uint64_t key = key_of(left, right);
    size_t slot = hash(key);
    while (slots_[slot].key != kFree && slots_[slot].key != key) slot = (slot + 1) & mask_;
    slots_[slot] = {key, merge};
}

} // namespace batchllm
