#include "draft/draft_rates.h"

#include <algorithm>

namespace batchllm {
namespace {

constexpr std::array<int32_t, 11> least = {0, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32};
// Before anything is known, and how many observations that counts for.
constexpr std::array<double, 11> assumed = {0.4,  0.5, 0.55, 0.6,  0.65, 0.7,
                                            0.75, 0.8, 0.85, 0.87, 0.9};
constexpr double assumed_weight = 8;
constexpr double weight_kept = 0.999; // of the earlier observations' weight, per observation

} // namespace

size_t DraftRates::class_of(int32_t match) {
    static_assert(least.size() == classes);
    const auto above = std::upper_bound(least.begin(), least.end(), match);
    return static_cast<size_t>(above - least.begin()) - 1;
}

void DraftRates::count(int32_t match, bool right) {
    Seen &seen = seen_[class_of(match)];
    seen.right = seen.right * weight_kept + (right ? 1 : 0);
    seen.all = seen.all * weight_kept + 1;
}

double DraftRates::rate(int32_t match) const {
    const size_t i = class_of(match);
    return (seen_[i].right + assumed_weight * assumed[i]) / (seen_[i].all + assumed_weight);
}

} // namespace batchllm
