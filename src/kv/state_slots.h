// Which slots for states of context nodes are free.
//
// Always: a slot that was ever taken is free or belongs to one page table. Taking and releasing are
// O(1) amortised, and the object's own memory grows with the peak number of slots in use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace batchllm {

class StateSlots {
  public:
    explicit StateSlots(int64_t total = 0) : total_(total) {}

    int64_t total() const { return total_; }
    int64_t used() const { return peak() - static_cast<int64_t>(free_.size()); }
    int64_t free() const { return total_ - used(); }
    int64_t peak() const { return static_cast<int64_t>(held_.size()); } // most ever used at once

    // Requires a free slot. If memory runs out, throws and changes nothing.
    int32_t take();
    // Throws std::logic_error on a slot that is not in use, which is a bug in the library.
    void give(int32_t slot);

  private:
    int64_t total_;
    // A new slot is taken only if no other is free, so the slots ever taken are those below peak().
    std::vector<int32_t> free_; // free slots below peak()
    std::vector<uint8_t> held_; // [peak]
};

} // namespace batchllm
