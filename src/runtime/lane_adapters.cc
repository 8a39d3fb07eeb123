#include "runtime/lane_adapters.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <system_error>
#include <utility>

namespace batchllm {

LaneAdapters::~LaneAdapters() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
}

// ---- What the engine's thread does ----

int32_t LaneAdapters::use(const std::shared_ptr<const AdapterSource> &source) {
    const std::lock_guard lock(mutex_);
    const auto found = numbers_.find(source->hash);
    if (found != numbers_.end()) {
        Entry &entry = at(found->second);
        if (entry.runs++ == 0 && entry.state == State::dropped) want(found->second);
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
    slots_.add(number, source->memory_bytes);
    want(number);
    return number;
}

void LaneAdapters::want(int32_t number) {
    at(number).state = State::wanted;
    wanted_.push_back(number);
    if (!thread_.joinable()) {
        try {
            thread_ = std::thread([this] { work(); });
        } catch (const std::system_error &) {
            // wait() reads then.
        }
    }
    changed_.notify_all();
}

void LaneAdapters::end_use(int32_t number) {
    if (number < 0) return;
    const std::lock_guard lock(mutex_);
    --at(number).runs;
    forget_unused(number);
}

// An adapter in a slot stays known, for rows to come.
void LaneAdapters::forget_unused(int32_t number) {
    Entry &entry = at(number);
    if (entry.runs > 0 || entry.state == State::reading || entry.state == State::loaded) return;
    if (entry.state == State::wanted) std::erase(wanted_, number);
    if (entry.packed != nullptr) packed_bytes_ -= entry.source->memory_bytes;
    changed_.notify_all();
    numbers_.erase(entry.source->hash);
    entry = Entry{};
    unused_numbers_.push_back(number);
}

Result<bool> LaneAdapters::take_read() {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(news_, false)) return false;
    bool any_failed = false;
    for (int32_t number = 0; number < static_cast<int32_t>(entries_.size()); ++number) {
        Entry &entry = at(number);
        if (entry.state == State::read) {
            entry.state = State::ready;
            slots_.set_ready(number);
        } else if (entry.state != State::failed) {
            continue;
        } else if (entry.runs > 0) {
            if (entry.failed.code() != BATCHLLM_ERROR_ROW_ADAPTER) return entry.failed;
            any_failed = true;
        }
        forget_unused(number); // if its rows were cancelled meanwhile
    }
    return any_failed;
}

Status LaneAdapters::failure(int32_t number) {
    const std::lock_guard lock(mutex_);
    return at(number).failed;
}

void LaneAdapters::hurry(int32_t number) {
    const std::lock_guard lock(mutex_);
    hurried_ = number;
    const auto found = std::find(wanted_.begin(), wanted_.end(), number);
    if (found == wanted_.end()) return; // it is being read
    wanted_.erase(found);
    wanted_.push_front(number);
    changed_.notify_all();
}

void LaneAdapters::wait() {
    const auto start = std::chrono::steady_clock::now();
    std::unique_lock lock(mutex_);
    if (!thread_.joinable() && !wanted_.empty()) read_next(&lock);
    changed_.wait(lock, [this] { return news_; });
    waited_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Status LaneAdapters::load() {
    for (const AdapterSlots::Change &change : slots_.take_changes()) {
        if (!change.load) {
            backend_.unload_adapter(change.slot);
            const std::lock_guard lock(mutex_);
            Entry &entry = at(change.number);
            entry.state = State::dropped;
            if (entry.runs > 0) {
                want(change.number);
            } else {
                forget_unused(change.number);
            }
            continue;
        }
        std::shared_ptr<const PackedAdapter> packed;
        {
            const std::lock_guard lock(mutex_);
            Entry &entry = at(change.number);
            packed = std::exchange(entry.packed, nullptr);
            entry.state = State::loaded;
            packed_bytes_ -= entry.source->memory_bytes;
            loaded_bytes_ += entry.source->memory_bytes;
            if (hurried_ == change.number) hurried_ = -1;
        }
        changed_.notify_all();
        ++loads_;
        RETURN_IF_ERROR(backend_.load_adapter(change.slot, std::move(packed)));
    }
    return {};
}

// ---- What the thread does ----

bool LaneAdapters::may_read() const {
    if (wanted_.empty()) return false;
    const int32_t next = wanted_.front();
    const int64_t bytes = entries_[static_cast<size_t>(next)].source->memory_bytes;
    return next == hurried_ || packed_bytes_ == 0 || packed_bytes_ + bytes <= ahead;
}

void LaneAdapters::work() {
    std::unique_lock lock(mutex_);
    while (true) {
        changed_.wait(lock, [this] { return stop_ || may_read(); });
        if (stop_) return;
        read_next(&lock);
    }
}

void LaneAdapters::read_next(std::unique_lock<std::mutex> *lock) {
    const int32_t number = wanted_.front();
    wanted_.pop_front();
    at(number).state = State::reading;
    const std::shared_ptr<const AdapterSource> source = at(number).source;
    packed_bytes_ += source->memory_bytes;
    lock->unlock();
    Status status;
    std::shared_ptr<const PackedAdapter> packed;
    try {
        auto read = source->library->read(*source);
        status = read.status();
        if (read.ok()) {
            auto made = backend_.pack_adapter(std::move(read).value());
            status = made.status();
            if (made.ok()) packed = std::move(made).value();
        }
    } catch (const std::bad_alloc &) {
        status = Status(BATCHLLM_ERROR_OUT_OF_MEMORY, "out of memory");
    }
    lock->lock();
    Entry &entry = at(number);
    entry.state = status.ok() ? State::read : State::failed;
    if (!status.ok()) packed_bytes_ -= source->memory_bytes;
    entry.packed = std::move(packed);
    entry.failed = std::move(status);
    news_ = true;
    changed_.notify_all();
}

} // namespace batchllm
