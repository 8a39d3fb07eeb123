// The adapters of one device: read and packed by a thread, in the order in which rows that need them
// are placed, and loaded into the slots that the scheduler gives them.
//
// Always: what the thread has packed and the device has not loaded takes no more than `ahead`, unless
// it is a single adapter, or one for which the scheduler waits.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "backend/backend.h"
#include "runtime/adapter_library.h"
#include "schedule/adapter_slots.h"

namespace batchllm {

class LaneAdapters {
  public:
    LaneAdapters(Backend *backend, AdapterSlots *slots) : backend_(*backend), slots_(*slots) {}
    LaneAdapters(const LaneAdapters &) = delete;
    LaneAdapters &operator=(const LaneAdapters &) = delete;
    ~LaneAdapters(); // waits for what the thread is reading

    // The scheduler's number of an adapter, for a run that is placed on the lane.
    int32_t use(const std::shared_ptr<const AdapterSource> &source);
    void end_use(int32_t number);
    // Whether runs on the lane need this adapter, or it is on the device.
    bool knows(const AdapterSource &source) const { return numbers_.contains(source.hash); }

    // Before a batch is scheduled: tells the scheduler which adapters are ready. True: since the last
    // call, adapters of runs turned out to be unreadable. Fails if one could not be read through no
    // fault of its own.
    Result<bool> take_read();
    // Why the adapter cannot be read; OK: it can, or this is not known yet.
    Status failure(int32_t number);
    // The scheduler waits for this adapter: it is read next.
    void hurry(int32_t number);
    // Waits until the thread has read an adapter.
    void wait();

    // After a batch has been scheduled, before it goes forward.
    Status load();

    int64_t loads() const { return loads_; }
    int64_t loaded_bytes() const { return loaded_bytes_; }
    double waited() const { return waited_; } // seconds in wait()

  private:
    enum class State : uint8_t { free, wanted, reading, read, ready, loaded, dropped, failed };
    struct Entry {
        State state = State::free;
        std::shared_ptr<const AdapterSource> source;
        std::shared_ptr<const PackedAdapter> packed;
        Status failed;
        int64_t runs = 0; // that need it
    };

    Entry &at(int32_t number) { return entries_[static_cast<size_t>(number)]; }
    void want(int32_t number);
    void forget_unused(int32_t number);
    void work();
    bool may_read() const;
    void read_next(std::unique_lock<std::mutex> *lock);

    static constexpr int64_t ahead = int64_t{512} << 20; // bytes

    Backend &backend_;
    AdapterSlots &slots_;
    std::map<AdapterHash, int32_t> numbers_;
    std::vector<int32_t> unused_numbers_;
    int64_t loads_ = 0, loaded_bytes_ = 0;
    double waited_ = 0;

    std::mutex mutex_; // of what follows
    std::condition_variable changed_;
    std::deque<Entry> entries_;  // by number
    std::deque<int32_t> wanted_; // numbers, in the order of reading
    int64_t packed_bytes_ = 0;   // of those packed and not loaded
    int32_t hurried_ = -1;
    bool news_ = false; // for take_read()
    bool stop_ = false;
    std::thread thread_;
};

} // namespace batchllm
