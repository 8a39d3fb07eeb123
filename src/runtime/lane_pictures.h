// The pictures of one device: read, decoded and resized by threads, in the order in which rows that have
// them are placed, and loaded into the slots that the scheduler gives them.
//
// Always: what has been prepared and not loaded takes about `ahead` at most, unless it is a single picture,
// or one for which the scheduler waits. A picture that has left its slot is prepared again only when the
// scheduler waits for it: its tokens may all be computed.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "backend/backend.h"
#include "runtime/picture_library.h"
#include "schedule/picture_slots.h"

namespace batchllm {

class LanePictures {
  public:
    LanePictures(Backend *backend, PictureSlots *slots, int32_t threads)
        : backend_(*backend), slots_(*slots), most_threads_(threads) {}
    LanePictures(const LanePictures &) = delete;
    LanePictures &operator=(const LanePictures &) = delete;
    ~LanePictures(); // waits for what the threads are preparing

    // The scheduler's number of a picture, for a run that is placed on the lane.
    int32_t use(const SharedPicture &source);
    void end_use(int32_t number);

    // Before a batch is scheduled: tells the scheduler which pictures are ready. True: since the last
    // call, pictures of runs turned out to be unreadable. Fails if one could not be read through no fault
    // of its own.
    Result<bool> take_prepared();
    // Why the picture cannot be read; OK: it can, or this is not known yet.
    Status failure(int32_t number);
    // The scheduler waits for this picture: it is prepared next.
    void hurry(int32_t number);
    // Waits until a picture has been prepared.
    void wait();

    // After a batch has been scheduled, before it goes forward.
    Status load();

    int64_t loads() const { return loads_; }
    double waited() const { return waited_; } // seconds in wait()
    double prepare_seconds() const;           // of all threads

  private:
    enum class State : uint8_t { free, wanted, preparing, prepared, ready, loaded, gone, failed };
    struct Entry {
        State state = State::free;
        SharedPicture source;
        std::shared_ptr<const PreparedPicture> picture;
        Status failed;
        int64_t runs = 0; // that need it
    };

    Entry &at(int32_t number) { return entries_[static_cast<size_t>(number)]; }
    const Entry &at(int32_t number) const { return entries_[static_cast<size_t>(number)]; }
    void want(int32_t number, bool first);
    void forget_unused(int32_t number);
    void forget(int32_t number);
    void work();
    bool may_prepare() const;
    void prepare_next(std::unique_lock<std::mutex> *lock);

    static constexpr int64_t ahead = int64_t{1} << 30; // bytes

    Backend &backend_;
    PictureSlots &slots_;
    const int32_t most_threads_;
    std::map<std::array<uint64_t, 2>, int32_t> numbers_; // by hash
    std::vector<int32_t> unused_numbers_;
    int64_t loads_ = 0;
    double waited_ = 0;

    mutable std::mutex mutex_; // of what follows
    std::condition_variable changed_;
    std::deque<Entry> entries_;  // by number
    std::deque<int32_t> wanted_; // numbers, in the order of preparing
    int64_t prepared_bytes_ = 0; // of those prepared, or being prepared, and not loaded
    int32_t hurried_ = -1;
    double prepare_seconds_ = 0;
    bool news_ = false; // for take_prepared()
    bool stop_ = false;
    std::vector<std::thread> threads_;
    int32_t idle_ = 0; // threads that wait
};

} // namespace batchllm
