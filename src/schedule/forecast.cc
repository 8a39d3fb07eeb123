#include "schedule/forecast.h"

#include <algorithm>
#include <cmath>

namespace batchllm {

void LengthEstimate::ended() {
    constexpr double kept = 1 - 0.6931471805599453 / half_life;
    progress_ *= kept;
    ended_ = ended_ * kept + 1;
}

double LengthEstimate::share() const { return std::min(1.0, progress_ / ended_); }

int64_t LengthEstimate::remaining(int32_t max_tokens, int64_t generated, bool preempted) const {
    const double expected = share() * max_tokens;
    // One that has outlived the mean is expected to last a quarter of it more.
    double left = std::max(expected - static_cast<double>(generated), expected / 4);
    if (preempted) left = std::max(left, static_cast<double>(generated));
    // The last token is never stored.
    const int64_t most = std::max<int64_t>(0, max_tokens - 1 - generated);
    return std::min(most, static_cast<int64_t>(std::ceil(left)));
}

void MemoryForecast::clear(int64_t longest) {
    width_ = std::max<int64_t>(0, longest) / buckets + 1;
    buckets_.fill({});
}

int32_t MemoryForecast::bucket_of(int64_t steps_left) const {
    return static_cast<int32_t>(std::clamp<int64_t>(steps_left / width_, 0, buckets - 1));
}

void MemoryForecast::add(int64_t slots_now, int64_t steps_left) {
    Bucket &bucket = buckets_[static_cast<size_t>(bucket_of(steps_left))];
    bucket.requests += 1;
    bucket.slots_now += slots_now;
    bucket.slots_at_end += slots_now + steps_left;
}

int64_t MemoryForecast::peak_with(int64_t slots_now, int64_t steps_left) const {
    const int32_t own = bucket_of(steps_left);
    int64_t peak = 0;
    int64_t later_requests = 0; // those that end in later buckets: they grow through this one
    int64_t later_slots = 0;
    for (int32_t i = buckets - 1; i >= 0; --i) {
        const Bucket &bucket = buckets_[static_cast<size_t>(i)];
        int64_t ending = bucket.slots_at_end;
        if (i == own) ending += slots_now + steps_left;
        peak = std::max(peak, ending + later_slots + later_requests * (i + 1) * width_);
        later_requests += bucket.requests + (i == own ? 1 : 0);
        later_slots += bucket.slots_now + (i == own ? slots_now : 0);
    }
    return peak;
}

} // namespace batchllm
