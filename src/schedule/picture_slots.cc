#include "schedule/picture_slots.h"

#include <algorithm>
#include <utility>

namespace batchllm {

PictureSlots::PictureSlots(int32_t slots, int64_t tokens) : tokens_(tokens) {
    for (int32_t slot = slots; slot-- > 0;) free_slots_.push_back(slot);
}

void PictureSlots::add(int32_t number, int32_t tokens) {
    const auto size = static_cast<size_t>(number) + 1;
    if (pictures_.size() < size) pictures_.resize(size);
    at(number) = Picture{};
    at(number).tokens = tokens;
}

bool PictureSlots::remove(int32_t number) {
    at(number).removed = true;
    at(number).ready = false;
    return at(number).slot >= 0;
}

void PictureSlots::begin_batch(uint64_t batch, uint64_t running) {
    for (const int32_t number : loaded_) {
        Picture &picture = at(number);
        if (picture.batch == batch) picture.batch = picture.batch_before;
        picture.batch_before = picture.batch;
    }
    batch_ = batch;
    running_ = running;
    blocked_ = -1;
}

void PictureSlots::unload(int32_t number) {
    Picture &picture = at(number);
    changes_.push_back({number, picture.slot, false});
    tokens_used_ -= picture.tokens;
    free_slots_.push_back(std::exchange(picture.slot, -1));
    picture.ready = false;
    std::erase(loaded_, number);
}

bool PictureSlots::take(int32_t number) {
    Picture &picture = at(number);
    if (picture.slot < 0) {
        if (!picture.ready) {
            blocked_ = number;
            return false;
        }
        while (free_slots_.empty() || tokens_used_ + picture.tokens > tokens_) {
            // The one whose last use is longest ago.
            int32_t oldest = -1;
            for (const int32_t other : loaded_) {
                if (at(other).batch >= running_) continue;
                if (oldest < 0 || at(other).batch < at(oldest).batch) oldest = other;
            }
            if (oldest < 0) return false;
            unload(oldest);
        }
        picture.slot = free_slots_.back();
        free_slots_.pop_back();
        loaded_.push_back(number);
        tokens_used_ += picture.tokens;
        changes_.push_back({number, picture.slot, true});
    }
    picture.batch = batch_;
    return true;
}

std::vector<PictureSlots::Change> PictureSlots::take_changes() {
    for (size_t i = loaded_.size(); i-- > 0;) {
        const int32_t number = loaded_[i];
        if (at(number).removed && at(number).batch < running_) unload(number);
    }
    return std::exchange(changes_, {});
}

} // namespace batchllm
