#include "schedule/forecast.h"

#include <cmath>

namespace batchllm {

LengthEstimate::LengthEstimate() { update(); }

void LengthEstimate::forget(int64_t longest) {
    const double kept = std::exp2(-1.0 / static_cast<double>(std::max<int64_t>(longest, 64)));
    for (double &reached : reached_) reached *= kept;
    for (double &stopped : stopped_) stopped *= kept;
}

void LengthEstimate::update() {
    // imagined: assumed requests that ran to max_tokens. enough: how many requests an age must have
    // seen for its own rate to count as much as that of all ages.
    constexpr double imagined = 4, enough = 8;
    double reached = imagined * ages, stopped = 0;
    for (size_t age = 0; age < ages; ++age) {
        reached += reached_[age];
        stopped += stopped_[age];
    }
    const double common = stopped / reached;
    std::array<double, ages + 1> survive; // to the start of each age
    survive[0] = 1;
    for (size_t age = 0; age < ages; ++age) {
        const double stop = (stopped_[age] + enough * common) / (reached_[age] + enough);
        survive[age + 1] = survive[age] * (1 - std::min(stop, 0.999)); // never 0
    }
    for (size_t age = 0; age < ages; ++age) {
        size_t end = age;
        for (size_t i = 0; i < outlook_points; ++i) {
            const double quantile = (static_cast<double>(i) + 0.5) / outlook_points;
            const double level = survive[age] * (1 - quantile);
            while (end < ages && survive[end + 1] > level) ++end;
            double at = static_cast<double>(end);
            if (end < ages) at += (survive[end] - level) / (survive[end] - survive[end + 1]);
            left_[age][i] = at - static_cast<double>(age);
        }
    }
    left_[ages].fill(0);
}

double LengthEstimate::share() const {
    double sum = 0;
    for (const double left : left_[0]) sum += left;
    return sum / (outlook_points * ages);
}

Outlook LengthEstimate::outlook(int32_t max_tokens, int64_t generated, bool preempted) const {
    Outlook outlook{};
    if (max_tokens < 1) return outlook;
    // The last token is never stored.
    const int64_t most = std::max<int64_t>(0, max_tokens - 1 - generated);
    // This runs for every request in every step that may admit one, so it avoids integer division.
    const double tokens_an_age = static_cast<double>(max_tokens) / ages;
    const double exact_age = static_cast<double>(generated) / tokens_an_age;
    const auto age = static_cast<size_t>(std::min<double>(exact_age, ages - 1));
    const double into = exact_age - static_cast<double>(age);
    for (size_t i = 0; i < outlook_points; ++i) {
        const double left = left_[age][i] + into * (left_[age + 1][i] - left_[age][i]);
        const auto steps = static_cast<int64_t>(left * tokens_an_age + 0.999999);
        outlook[i] = std::clamp<int64_t>(preempted ? std::max(steps, generated) : steps, 0, most);
    }
    return outlook;
}

MemoryForecast::MemoryForecast(std::span<const KvWindow> windows, int32_t page_tokens) {
    // Pages at both ends of a window are partly used: on average one page more than it fills.
    for (const KvWindow &kind : windows)
        kinds_.push_back(
            {kind.groups, kind.window == 0 ? INT64_MAX : int64_t{kind.window} + page_tokens - 1});
    if (kinds_.empty()) kinds_.push_back({1, INT64_MAX});
}

void MemoryForecast::clear(int64_t longest) {
    shift_ = 0;
    while (longest >> shift_ >= buckets) ++shift_;
    buckets_.fill({});
}

void MemoryForecast::add(int64_t slots_now, const Outlook &outlook) {
    add_to(&buckets_, slots_now, outlook, 1);
}

int64_t MemoryForecast::slots(int64_t stored) const {
    int64_t slots = 0;
    for (const Kind &kind : kinds_) slots += kind.groups * std::min(stored, kind.most_slots);
    return slots;
}

void MemoryForecast::add_to(Buckets *all, int64_t slots_now, const Outlook &outlook,
                            int64_t count) const {
    for (const Kind kind : kinds_) { // by value, so that the writes below cannot change it
        const int64_t groups = count * kind.groups;
        if (kind.most_slots == INT64_MAX) {
            for (const int64_t steps : outlook)
                add_part(&(*all)[bucket_of(steps)], groups, slots_now, steps);
            continue;
        }
        const int64_t now = std::min(slots_now, kind.most_slots);
        for (const int64_t steps : outlook) {
            const int64_t growing = std::min(steps, kind.most_slots - now);
            const size_t full = bucket_of(growing), end = bucket_of(steps);
            add_part(&(*all)[full], groups, now, growing);
            if (full == end) continue;
            (*all)[end].full_end += groups * kind.most_slots;
            (*all)[full].full_begin += groups * kind.most_slots;
        }
    }
}

int64_t MemoryForecast::peak_with(int64_t slots_now, const Outlook &outlook, int64_t count) const {
    Buckets all = buckets_;
    add_to(&all, slots_now, outlook, count);
    int64_t peak = 0;
    int64_t later_parts = 0; // those that end in later buckets and grow through this one
    int64_t later_slots = 0;
    for (int64_t i = buckets - 1; i >= 0; --i) {
        const Bucket &bucket = all[static_cast<size_t>(i)];
        later_slots += bucket.full_end - bucket.full_begin;
        peak =
            std::max(peak, bucket.slots_at_end + later_slots + (later_parts * (i + 1) << shift_));
        later_parts += bucket.parts;
        later_slots += bucket.slots_now;
    }
    constexpr auto parts = static_cast<int64_t>(outlook_points);
    return (peak + parts - 1) / parts;
}

} // namespace batchllm
