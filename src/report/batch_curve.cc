#include "report/batch_curve.h"

#include <algorithm>
#include <cmath>

namespace batchllm {
namespace {

// Shorter gaps are the host's work between two batches, not pauses.
constexpr double pause_seconds = 0.25;

} // namespace

void BatchCurve::Slot::add(const Slot &other) {
    seconds += other.seconds;
    decode += other.decode;
    own += other.own;
    prefix += other.prefix;
    pages += other.pages;
    pages_peak = std::max(pages_peak, other.pages_peak);
}

void BatchCurve::add(double now, double seconds, const BatchTokens &batch) {
    if (!std::isfinite(now) || !std::isfinite(seconds)) return;
    ++batches_;
    now = std::max(now, last_);
    const double pause = now - last_ - std::max(seconds, 0.0);
    double begin = last_;
    if (pause > pause_seconds) {
        begin = last_ + pause;
        spread(last_, begin, {});
    }
    spread(begin, now, batch);
    last_ = now;
}

void BatchCurve::spread(double begin, double end, const BatchTokens &batch) {
    while (end >= width_ * static_cast<double>(most_slots)) halve();
    const auto place = [this](double at) { return static_cast<size_t>(at / width_); };
    const size_t first = place(begin), last = place(end);
    if (slots_.size() <= last) slots_.resize(last + 1);
    for (size_t i = first; i <= last; ++i) {
        const double from = std::max(begin, width_ * static_cast<double>(i));
        const double to = std::min(end, width_ * static_cast<double>(i + 1));
        const double seconds = std::max(0.0, to - from);
        slots_[i].add({seconds, static_cast<double>(batch.decode) * seconds,
                       static_cast<double>(batch.own) * seconds,
                       static_cast<double>(batch.prefix) * seconds,
                       static_cast<double>(batch.pages) * seconds, batch.pages});
    }
}

void BatchCurve::halve() {
    std::vector<Slot> half((slots_.size() + 1) / 2);
    for (size_t i = 0; i < slots_.size(); ++i) half[i / 2].add(slots_[i]);
    slots_ = std::move(half);
    width_ *= 2;
}

std::vector<CurvePoint> BatchCurve::points(size_t most) const {
    std::vector<CurvePoint> points;
    if (slots_.empty() || most == 0) return points;
    const size_t together = (slots_.size() + most - 1) / most;
    for (size_t i = 0; i < slots_.size(); i += together) {
        Slot sum;
        for (size_t j = i; j < std::min(i + together, slots_.size()); ++j) sum.add(slots_[j]);
        CurvePoint point;
        point.begin = width_ * static_cast<double>(i);
        point.end = std::min(width_ * static_cast<double>(i + together), last_);
        if (sum.seconds <= 0 || point.end <= point.begin) continue;
        point.decode = sum.decode / sum.seconds;
        point.own = sum.own / sum.seconds;
        point.prefix = sum.prefix / sum.seconds;
        point.pages = sum.pages / sum.seconds;
        point.pages_peak = sum.pages_peak;
        points.push_back(point);
    }
    return points;
}

} // namespace batchllm
