#include "report/length_counts.h"

#include <algorithm>
#include <bit>

namespace batchllm {
namespace {

constexpr int64_t exact = 1024;
constexpr int exact_bits = 10;
constexpr size_t places_of_octave = 512;
constexpr int64_t longest = int64_t{1} << 40;

} // namespace

size_t LengthCounts::place_of(int64_t length) {
    if (length < exact) return static_cast<size_t>(length);
    const auto octave = static_cast<int>(std::bit_width(static_cast<uint64_t>(length))) - 1;
    const auto leading = static_cast<size_t>(length >> (octave - 9)); // in [512, 1024)
    return static_cast<size_t>(exact) +
           static_cast<size_t>(octave - exact_bits) * places_of_octave +
           (leading - places_of_octave);
}

int64_t LengthCounts::first_of(size_t place) {
    if (place < static_cast<size_t>(exact)) return static_cast<int64_t>(place);
    const size_t above = place - static_cast<size_t>(exact);
    const auto octave = static_cast<int>(above / places_of_octave) + exact_bits;
    return static_cast<int64_t>(above % places_of_octave + places_of_octave) << (octave - 9);
}

void LengthCounts::add(int64_t length, int64_t times) {
    length = std::clamp<int64_t>(length, 0, longest);
    if (times <= 0) return;
    const size_t place = place_of(length);
    if (place >= counts_.size()) counts_.resize(place + 1);
    counts_[place] += times;
    least_ = count_ == 0 ? length : std::min(least_, length);
    most_ = std::max(most_, length);
    count_ += times;
    total_ += length * times;
}

double LengthCounts::mean() const {
    return count_ == 0 ? 0 : static_cast<double>(total_) / static_cast<double>(count_);
}

int64_t LengthCounts::quantile(double share) const {
    const double wanted = share * static_cast<double>(count_);
    int64_t seen = 0;
    for (size_t place = 0; place < counts_.size(); ++place) {
        seen += counts_[place];
        if (seen > 0 && static_cast<double>(seen) >= wanted) {
            return std::clamp(first_of(place), least_, most_);
        }
    }
    return most_;
}

double LengthCounts::within(double begin, double end) const {
    double sum = 0;
    for (size_t place = 0; place < counts_.size(); ++place) {
        if (counts_[place] == 0) continue;
        const auto first = static_cast<double>(first_of(place));
        const auto next = static_cast<double>(first_of(place + 1));
        const double inside = std::min(next, end) - std::max(first, begin);
        if (inside <= 0) continue;
        sum += static_cast<double>(counts_[place]) * std::min(1.0, inside / (next - first));
    }
    return sum;
}

} // namespace batchllm
