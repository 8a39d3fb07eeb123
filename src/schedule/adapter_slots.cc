#include "schedule/adapter_slots.h"

#include <algorithm>
#include <utility>

namespace batchllm {

AdapterSlots::AdapterSlots(int32_t slots, int64_t bytes) : slots_(slots), bytes_(bytes) {
    for (int32_t slot = slots; slot-- > 0;) free_slots_.push_back(slot);
}

void AdapterSlots::add(int32_t number, int64_t bytes) {
    const auto size = static_cast<size_t>(number) + 1;
    if (adapters_.size() < size) adapters_.resize(size);
    at(number) = Adapter{};
    at(number).bytes = bytes;
}

void AdapterSlots::add_pending(int32_t number) {
    if (number < 0) return;
    ++at(number).pending;
    at(number).order = ++ordered_;
}

void AdapterSlots::remove_pending(int32_t number) {
    if (number >= 0) --at(number).pending;
}

bool AdapterSlots::fits(int64_t bytes, int64_t slots_used, int64_t bytes_used) const {
    return slots_used < slots_ && bytes_used + bytes <= bytes_;
}

bool AdapterSlots::allows(int32_t number) {
    blocked_ = -1;
    if (number < 0 || at(number).slot >= 0) return true;
    int64_t slots = 0, bytes = 0; // of those that stay
    for (const int32_t other : loaded_) {
        if (!stays(at(other))) continue;
        ++slots;
        bytes += at(other).bytes;
    }
    if (!fits(at(number).bytes, slots, bytes)) return false;
    if (!at(number).ready) blocked_ = number;
    return at(number).ready;
}

void AdapterSlots::hold(int32_t number) {
    if (number < 0) return;
    Adapter &adapter = at(number);
    ++adapter.held;
    if (adapter.slot >= 0) return;
    while (!fits(adapter.bytes, static_cast<int64_t>(loaded_.size()), bytes_used_)) evict();
    adapter.slot = free_slots_.back();
    free_slots_.pop_back();
    loaded_.push_back(number);
    bytes_used_ += adapter.bytes;
    bytes_peak_ = std::max(bytes_peak_, bytes_used_);
    changes_.push_back({number, adapter.slot, true});
}

// Takes the slot of an adapter that need not stay: one that nothing needs, the one whose last use is
// longest ago; otherwise the one that the newest request needs.
void AdapterSlots::evict() {
    int32_t best = -1;
    const auto goes_before = [](const Adapter &a, const Adapter &b) {
        if ((a.pending == 0) != (b.pending == 0)) return a.pending == 0;
        return a.pending == 0 ? a.batch < b.batch : a.order > b.order;
    };
    for (const int32_t number : loaded_) {
        if (stays(at(number))) continue;
        if (best < 0 || goes_before(at(number), at(best))) best = number;
    }
    Adapter &adapter = at(best);
    changes_.push_back({best, adapter.slot, false});
    bytes_used_ -= adapter.bytes;
    free_slots_.push_back(std::exchange(adapter.slot, -1));
    adapter.ready = false;
    std::erase(loaded_, best);
}

void AdapterSlots::release(int32_t number) {
    if (number >= 0) --at(number).held;
}

void AdapterSlots::begin_batch(uint64_t batch, uint64_t running) {
    batch_ = batch;
    running_ = running;
    blocked_ = -1;
}

void AdapterSlots::use(int32_t number) {
    if (number >= 0) at(number).batch = batch_;
}

std::vector<AdapterSlots::Change> AdapterSlots::take_changes() {
    return std::exchange(changes_, {});
}

} // namespace batchllm
