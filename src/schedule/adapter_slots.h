// Which adapters are on a device: the requests that run hold theirs, and the room is bounded.
//
// An adapter has a number, which requests carry. It is ready once it has been read and packed on the
// host; a request is admitted only when its adapter is in a slot, or is ready and gets one. Adapters
// that no running request holds stay in their slots until the room is needed, unless a batch in flight
// uses them.
//
// Always: the adapters in slots take no more than the room; one that is held or that a batch in
// flight uses keeps its slot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace batchllm {

class AdapterSlots {
  public:
    // BackendInfo's; 0: there are no adapters.
    AdapterSlots(int32_t slots, int64_t bytes);

    // A new adapter, which is not ready. bytes: at most the room.
    void add(int32_t number, int64_t bytes);
    // It has been read and packed.
    void set_ready(int32_t number) { at(number).ready = true; }

    // Requests that wait or run need it.
    void add_pending(int32_t number);
    void remove_pending(int32_t number);

    // Whether a request with the adapter can be admitted now (-1: it has none). If all that is
    // missing is that the adapter is ready, blocked() is its number.
    bool allows(int32_t number);
    int32_t blocked() const { return blocked_; }
    // For a request that allows() has just allowed. Gives the adapter a slot if it has none.
    void hold(int32_t number);
    void release(int32_t number);

    int32_t slot(int32_t number) const { return number < 0 ? -1 : at(number).slot; }
    // A batch is being built: the batches before `running` have finished.
    void begin_batch(uint64_t batch, uint64_t running);
    // The batch has tokens that use the adapter.
    void use(int32_t number);

    // What has changed since the last call, in this order, before the batch goes forward. An adapter
    // that is unloaded is no longer ready.
    struct Change {
        int32_t number;
        int32_t slot;
        bool load; // false: unload
    };
    std::vector<Change> take_changes();

    int64_t bytes_peak() const { return bytes_peak_; }

  private:
    struct Adapter {
        int64_t bytes = 0;
        int32_t slot = -1;
        bool ready = false;
        int64_t pending = 0;
        int64_t held = 0;   // by admitted requests
        int64_t order = 0;  // of the last request that came to need it
        uint64_t batch = 0; // the last that uses it
    };

    Adapter &at(int32_t number) { return adapters_[static_cast<size_t>(number)]; }
    const Adapter &at(int32_t number) const { return adapters_[static_cast<size_t>(number)]; }
    bool stays(const Adapter &adapter) const {
        return adapter.held > 0 || adapter.batch >= running_;
    }
    bool fits(int64_t bytes, int64_t slots_used, int64_t bytes_used) const;
    void evict();

    int32_t slots_;
    int64_t bytes_;
    std::vector<Adapter> adapters_;   // by number
    std::vector<int32_t> loaded_;     // numbers of those in slots
    std::vector<int32_t> free_slots_; // highest first
    std::vector<Change> changes_;
    int64_t bytes_used_ = 0, bytes_peak_ = 0;
    int64_t ordered_ = 0;
    uint64_t batch_ = 1, running_ = 1; // no adapter has been used by batch 1
    int32_t blocked_ = -1;
};

} // namespace batchllm
