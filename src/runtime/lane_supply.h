// What the tokens of one device need beside the weights (a Kind: adapters, pictures): made by threads, in
// the order in which rows that need it are placed, and loaded into the slots that the scheduler gives it.
//
// A thing has a number from the first run that needs it until no run does and it is in no slot:
//
//     wanted -> making -> made -> ready -> loaded -> dropped -> wanted
//                     `-> failed
//
// Always: what is made and not loaded, and what making takes, is no more than Kind::ahead, unless it is of
// a single thing, or of one for which the scheduler waits.
//
// A Kind has, all static:
//
//     Source, Made, Slots          what is known of a thing, with its `hash`; what is loaded; the
//                                  scheduler's slots
//     make(backend, source)        on any thread
//     bytes(source)                that it takes once it is made
//     bytes_to_make(source)        that it takes while it is made
//     loaded_bytes(source)         that it takes in its slot
//     ahead                        bytes
//     row_error                    code of the errors in making that are of the thing's rows alone
//     add(slots, number, source)   tells the scheduler of it
//     keeps_unused                 whether one in a slot stays there for rows to come. Otherwise the slot is
//                                  given up when no run needs it, and rows to come take another number
//     renews_at_once               whether one that runs need is wanted again as soon as it has lost its
//                                  slot. Otherwise it is when the scheduler waits for it
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "base/status.h"

namespace batchllm {

template <class Kind> class LaneSupply {
  public:
    using Source = typename Kind::Source;
    using Made = typename Kind::Made;
    using Slots = typename Kind::Slots;

    LaneSupply(const LaneSupply &) = delete;
    LaneSupply &operator=(const LaneSupply &) = delete;

    // The scheduler's number of a thing, for a run that is placed on the lane.
    int32_t use(const std::shared_ptr<const Source> &source);
    void end_use(int32_t number); // -1: none
    // Whether use() knows a number for it: runs on the lane need it, or it is kept in a slot.
    bool knows(const Source &source) const { return numbers_.contains(source.hash); }

    // Before a batch is scheduled: tells the scheduler what has become ready. True: since the last call,
    // something that runs need could not be made. Fails if that is through no fault of its own.
    Result<bool> take_made();
    // Why it cannot be made; OK: it can, or this is not known yet.
    Status failure(int32_t number);
    // The scheduler waits for it: it is made next.
    void hurry(int32_t number);
    // Waits until something has been made.
    void wait();

    int64_t loads() const { return loads_; }
    int64_t loaded_bytes() const { return loaded_bytes_; }
    double waited() const { return waited_; } // seconds in wait()
    double make_seconds() const;              // of all threads

  protected:
    LaneSupply(Backend *backend, Slots *slots, int32_t threads)
        : backend_(*backend), slots_(*slots), most_threads_(threads) {}
    ~LaneSupply(); // waits for what the threads are making

    // For each change of the slots, in their order: what goes into one; that it has lost one.
    std::shared_ptr<const Made> take(int32_t number);
    void drop(int32_t number);

    Backend &backend_;
    Slots &slots_;

  private:
    enum class State : uint8_t { free, wanted, making, made, ready, loaded, dropped, failed };
    struct Entry {
        State state = State::free;
        std::shared_ptr<const Source> source;
        std::shared_ptr<const Made> made; // states made and ready
        Status failed;
        int64_t runs = 0; // that need it
    };

    using Clock = std::chrono::steady_clock;
    static double seconds_since(Clock::time_point start) {
        return std::chrono::duration<double>(Clock::now() - start).count();
    }

    Entry &at(int32_t number) { return entries_[static_cast<size_t>(number)]; }
    void want(int32_t number, bool first);
    void forget_unused(int32_t number);
    void work();
    bool may_make();
    void make_next(std::unique_lock<std::mutex> *lock);

    const int32_t most_threads_;
    std::map<std::array<uint64_t, 2>, int32_t> numbers_; // by hash
    std::vector<int32_t> unused_numbers_;
    int64_t loads_ = 0, loaded_bytes_ = 0;
    double waited_ = 0;

    mutable std::mutex mutex_; // of what follows
    std::condition_variable changed_;
    std::deque<Entry> entries_;  // by number
    std::deque<int32_t> wanted_; // numbers, in the order of making
    int64_t ahead_bytes_ = 0;    // of those being made, made and ready
    int32_t hurried_ = -1;
    double make_seconds_ = 0;
    bool news_ = false; // for take_made()
    bool stop_ = false;
    std::vector<std::thread> threads_;
    int32_t idle_ = 0; // threads that wait
};

template <class Kind> LaneSupply<Kind>::~LaneSupply() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    changed_.notify_all();
    for (std::thread &thread : threads_) thread.join();
}

// ---- What the engine's thread does ----

template <class Kind> int32_t LaneSupply<Kind>::use(const std::shared_ptr<const Source> &source) {
    const std::lock_guard lock(mutex_);
    const auto found = numbers_.find(source->hash);
    if (found != numbers_.end()) {
        ++at(found->second).runs;
        return found->second;
    }
    if (unused_numbers_.empty()) {
        entries_.emplace_back();
        unused_numbers_.push_back(static_cast<int32_t>(entries_.size()) - 1);
    }
    const int32_t number = unused_numbers_.back();
    numbers_.emplace(source->hash, number);
    unused_numbers_.pop_back();
    Entry &entry = at(number);
    entry = Entry{};
    entry.source = source;
    entry.runs = 1;
    Kind::add(&slots_, number, *source);
    want(number, false);
    return number;
}

template <class Kind> void LaneSupply<Kind>::want(int32_t number, bool first) {
    at(number).state = State::wanted;
    if (first) {
        wanted_.push_front(number);
    } else {
        wanted_.push_back(number);
    }
    if (idle_ == 0 && static_cast<int32_t>(threads_.size()) < most_threads_) {
        try {
            threads_.emplace_back([this] { work(); });
        } catch (const std::system_error &) {
            // Those that run make it; without any, wait() does.
        }
    }
    changed_.notify_all();
}

template <class Kind> void LaneSupply<Kind>::end_use(int32_t number) {
    if (number < 0) return;
    const std::lock_guard lock(mutex_);
    --at(number).runs;
    forget_unused(number);
}

// While it is being made, or is in a slot, its number stays.
template <class Kind> void LaneSupply<Kind>::forget_unused(int32_t number) {
    Entry &entry = at(number);
    if (entry.runs > 0 || entry.state == State::making) return;
    if (entry.state == State::loaded && Kind::keeps_unused) return;
    // Once the slot is given up, the hash may have got another number.
    const auto known = numbers_.find(entry.source->hash);
    if (known != numbers_.end() && known->second == number) numbers_.erase(known);
    if constexpr (!Kind::keeps_unused) {
        if (entry.state == State::loaded) {
            slots_.remove(number);
            return;
        }
    }
    if (entry.state == State::wanted) std::erase(wanted_, number);
    if (entry.state == State::made || entry.state == State::ready) {
        ahead_bytes_ -= Kind::bytes(*entry.source);
    }
    if (hurried_ == number) hurried_ = -1;
    entry = Entry{};
    unused_numbers_.push_back(number);
    changed_.notify_all();
}

template <class Kind> Result<bool> LaneSupply<Kind>::take_made() {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(news_, false)) return false;
    bool any_failed = false;
    for (int32_t number = 0; number < static_cast<int32_t>(entries_.size()); ++number) {
        Entry &entry = at(number);
        if (entry.state == State::made) {
            entry.state = State::ready;
            slots_.set_ready(number);
        } else if (entry.state != State::failed) {
            continue;
        } else if (entry.runs > 0) {
            if (entry.failed.code() != Kind::row_error) return entry.failed;
            any_failed = true;
        }
        forget_unused(number); // if its rows were cancelled meanwhile
    }
    return any_failed;
}

template <class Kind> Status LaneSupply<Kind>::failure(int32_t number) {
    const std::lock_guard lock(mutex_);
    return at(number).failed;
}

template <class Kind> void LaneSupply<Kind>::hurry(int32_t number) {
    const std::lock_guard lock(mutex_);
    hurried_ = number;
    if (at(number).state == State::dropped) return want(number, true);
    const auto found = std::find(wanted_.begin(), wanted_.end(), number);
    if (found == wanted_.end()) return; // it is being made
    wanted_.erase(found);
    wanted_.push_front(number);
    changed_.notify_all();
}

template <class Kind> void LaneSupply<Kind>::wait() {
    const Clock::time_point start = Clock::now();
    std::unique_lock lock(mutex_);
    if (threads_.empty() && !wanted_.empty()) make_next(&lock);
    changed_.wait(lock, [this] { return news_; });
    waited_ += seconds_since(start);
}

template <class Kind>
std::shared_ptr<const typename Kind::Made> LaneSupply<Kind>::take(int32_t number) {
    const std::lock_guard lock(mutex_);
    Entry &entry = at(number);
    entry.state = State::loaded;
    ahead_bytes_ -= Kind::bytes(*entry.source);
    loaded_bytes_ += Kind::loaded_bytes(*entry.source);
    ++loads_;
    if (hurried_ == number) hurried_ = -1;
    changed_.notify_all();
    return std::exchange(entry.made, nullptr);
}

template <class Kind> void LaneSupply<Kind>::drop(int32_t number) {
    const std::lock_guard lock(mutex_);
    Entry &entry = at(number);
    entry.state = State::dropped;
    if (entry.runs > 0) {
        if (Kind::renews_at_once) want(number, false);
    } else {
        forget_unused(number);
    }
}

template <class Kind> double LaneSupply<Kind>::make_seconds() const {
    const std::lock_guard lock(mutex_);
    return make_seconds_;
}

// ---- What the threads do ----

template <class Kind> bool LaneSupply<Kind>::may_make() {
    if (wanted_.empty()) return false;
    const int32_t next = wanted_.front();
    return next == hurried_ || ahead_bytes_ == 0 ||
           ahead_bytes_ + Kind::bytes_to_make(*at(next).source) <= Kind::ahead;
}

template <class Kind> void LaneSupply<Kind>::work() {
    std::unique_lock lock(mutex_);
    while (true) {
        ++idle_;
        changed_.wait(lock, [this] { return stop_ || may_make(); });
        --idle_;
        if (stop_) return;
        make_next(&lock);
    }
}

template <class Kind> void LaneSupply<Kind>::make_next(std::unique_lock<std::mutex> *lock) {
    const int32_t number = wanted_.front();
    wanted_.pop_front();
    at(number).state = State::making;
    const std::shared_ptr<const Source> source = at(number).source;
    ahead_bytes_ += Kind::bytes_to_make(*source);
    lock->unlock();
    const Clock::time_point start = Clock::now();
    Status status;
    std::shared_ptr<const Made> made;
    try {
        auto result = Kind::make(backend_, *source);
        status = result.status();
        if (result.ok()) made = std::move(result).value();
    } catch (const std::bad_alloc &) {
        status = Status(BATCHLLM_ERROR_OUT_OF_MEMORY, "out of memory");
    }
    const double seconds = seconds_since(start);
    lock->lock();
    make_seconds_ += seconds;
    ahead_bytes_ -= Kind::bytes_to_make(*source);
    if (status.ok()) ahead_bytes_ += Kind::bytes(*source);
    Entry &entry = at(number);
    entry.state = status.ok() ? State::made : State::failed;
    entry.made = std::move(made);
    entry.failed = std::move(status);
    news_ = true;
    changed_.notify_all();
}

} // namespace batchllm
