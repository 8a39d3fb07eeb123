#include "kv/state_slots.h"

#include <algorithm>
#include <stdexcept>

namespace batchllm {

int32_t StateSlots::take() {
    if (!free_.empty()) {
        const int32_t slot = free_.back();
        free_.pop_back();
        held_[static_cast<size_t>(slot)] = 1;
        return slot;
    }
    if (peak() >= total_) throw std::logic_error("state slots: none is free");
    // Makes room in the free list, so that releasing a slot cannot fail.
    if (free_.capacity() < held_.size() + 1) {
        free_.reserve(std::max<size_t>(64, 2 * (held_.size() + 1)));
    }
    held_.push_back(1);
    return static_cast<int32_t>(held_.size() - 1);
}

void StateSlots::give(int32_t slot) {
    if (slot < 0 || slot >= peak() || !held_[static_cast<size_t>(slot)])
        throw std::logic_error("state slots: a slot given back that is not held");
    held_[static_cast<size_t>(slot)] = 0;
    free_.push_back(slot);
}

} // namespace batchllm
