#include "runtime/lane_pictures.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <system_error>
#include <utility>

namespace batchllm {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

// What a prepared picture takes, known before it is: three channels of 16 x 16 pixels a patch.
int64_t bytes_of(const PictureSource &source) {
    return int64_t{source.grid.rows} * source.grid.columns * 3 * 16 * 16 *
           static_cast<int64_t>(sizeof(float));
}

} // namespace

LanePictures::~LanePictures() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    changed_.notify_all();
    for (std::thread &thread : threads_) thread.join();
}

// ---- What the engine's thread does ----

int32_t LanePictures::use(const SharedPicture &source) {
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
    slots_.add(number, source->grid.tokens);
    want(number, false);
    return number;
}

void LanePictures::want(int32_t number, bool first) {
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
            // Those that run do it; without any, wait() does.
        }
    }
    changed_.notify_all();
}

void LanePictures::end_use(int32_t number) {
    const std::lock_guard lock(mutex_);
    --at(number).runs;
    forget_unused(number);
}

// While a picture is being prepared, or is in a slot, its number stays.
void LanePictures::forget_unused(int32_t number) {
    Entry &entry = at(number);
    if (entry.runs > 0 || entry.state == State::preparing) return;
    if (entry.state == State::wanted) std::erase(wanted_, number);
    if (entry.picture != nullptr) prepared_bytes_ -= bytes_of(*entry.source);
    entry.picture = nullptr;
    changed_.notify_all();
    if (entry.state == State::loaded) {
        // A run to come takes another number: this one is about to be unloaded.
        numbers_.erase(entry.source->hash);
        slots_.remove(number);
        return;
    }
    numbers_.erase(entry.source->hash);
    forget(number);
}

void LanePictures::forget(int32_t number) {
    at(number) = Entry{};
    unused_numbers_.push_back(number);
}

Result<bool> LanePictures::take_prepared() {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(news_, false)) return false;
    bool any_failed = false;
    for (int32_t number = 0; number < static_cast<int32_t>(entries_.size()); ++number) {
        Entry &entry = at(number);
        if (entry.state == State::prepared) {
            entry.state = State::ready;
            slots_.set_ready(number);
        } else if (entry.state != State::failed) {
            continue;
        } else if (entry.runs > 0) {
            if (entry.failed.code() != BATCHLLM_ERROR_ROW_PICTURE) return entry.failed;
            any_failed = true;
        }
        forget_unused(number); // if its rows were cancelled meanwhile
    }
    return any_failed;
}

Status LanePictures::failure(int32_t number) {
    const std::lock_guard lock(mutex_);
    return at(number).failed;
}

void LanePictures::hurry(int32_t number) {
    const std::lock_guard lock(mutex_);
    hurried_ = number;
    if (at(number).state == State::gone) return want(number, true);
    const auto found = std::find(wanted_.begin(), wanted_.end(), number);
    if (found == wanted_.end()) return; // it is being prepared
    wanted_.erase(found);
    wanted_.push_front(number);
    changed_.notify_all();
}

void LanePictures::wait() {
    const Clock::time_point start = Clock::now();
    std::unique_lock lock(mutex_);
    if (threads_.empty() && !wanted_.empty()) prepare_next(&lock);
    changed_.wait(lock, [this] { return news_; });
    waited_ += seconds_since(start);
}

Status LanePictures::load() {
    std::vector<PictureLoad> loads;
    for (const PictureSlots::Change &change : slots_.take_changes()) {
        if (!change.load) {
            backend_.unload_picture(change.slot);
            const std::lock_guard lock(mutex_);
            at(change.number).state = State::gone;
            if (at(change.number).runs == 0) forget(change.number);
            continue;
        }
        const std::lock_guard lock(mutex_);
        Entry &entry = at(change.number);
        loads.push_back({change.slot, std::exchange(entry.picture, nullptr)});
        entry.state = State::loaded;
        prepared_bytes_ -= bytes_of(*entry.source);
        if (hurried_ == change.number) hurried_ = -1;
        changed_.notify_all();
    }
    if (loads.empty()) return {};
    loads_ += static_cast<int64_t>(loads.size());
    return backend_.load_pictures(loads);
}

double LanePictures::prepare_seconds() const {
    const std::lock_guard lock(mutex_);
    return prepare_seconds_;
}

// ---- What the threads do ----

bool LanePictures::may_prepare() const {
    if (wanted_.empty()) return false;
    const int32_t next = wanted_.front();
    return next == hurried_ || prepared_bytes_ == 0 ||
           prepared_bytes_ + bytes_of(*at(next).source) <= ahead;
}

void LanePictures::work() {
    std::unique_lock lock(mutex_);
    while (true) {
        ++idle_;
        changed_.wait(lock, [this] { return stop_ || may_prepare(); });
        --idle_;
        if (stop_) return;
        prepare_next(&lock);
    }
}

void LanePictures::prepare_next(std::unique_lock<std::mutex> *lock) {
    const int32_t number = wanted_.front();
    wanted_.pop_front();
    at(number).state = State::preparing;
    const SharedPicture source = at(number).source;
    prepared_bytes_ += bytes_of(*source);
    lock->unlock();
    const Clock::time_point start = Clock::now();
    Status status;
    std::shared_ptr<const PreparedPicture> picture;
    try {
        if (backend_.info().computes_on.kind == DeviceKind::none) {
            auto modelled = std::make_shared<PreparedPicture>(); // nothing reads its patches
            modelled->grid = source->grid;
            picture = std::move(modelled);
        } else {
            auto prepared = source->library->prepare(*source);
            status = prepared.status();
            if (prepared.ok()) picture = std::move(prepared).value();
        }
    } catch (const std::bad_alloc &) {
        status = Status(BATCHLLM_ERROR_OUT_OF_MEMORY, "out of memory");
    }
    const double seconds = seconds_since(start);
    lock->lock();
    prepare_seconds_ += seconds;
    Entry &entry = at(number);
    entry.state = status.ok() ? State::prepared : State::failed;
    if (!status.ok()) prepared_bytes_ -= bytes_of(*source);
    entry.picture = std::move(picture);
    entry.failed = std::move(status);
    news_ = true;
    changed_.notify_all();
}

} // namespace batchllm
