// Batches, one by one -> their composition over time, in a bounded number of time slots. When all
// slots are used up, they are merged in pairs, so a long job always uses between half of them and
// all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace batchllm {

struct BatchTokens {
    int64_t decode = 0;
    int64_t own = 0;
    int64_t prefix = 0;
    int64_t pages = 0; // used, over all devices

    int64_t tokens() const { return decode + own + prefix; }
};

// Means over a slot, weighted by time.
struct CurvePoint {
    double begin = 0; // seconds
    double end = 0;
    double decode = 0;
    double own = 0;
    double prefix = 0;
    double pages = 0;
    int64_t pages_peak = 0;
};

class BatchCurve {
  public:
    static constexpr size_t most_slots = 1024;

    // A batch that ended `now` seconds after the start and took `seconds`. Nothing ran between the
    // previous batch and the start of this one, if that gap is long enough to be visible.
    void add(double now, double seconds, const BatchTokens &batch);

    double seconds() const { return last_; }
    int64_t batches() const { return batches_; }
    // At most `most` consecutive points that cover the whole time.
    std::vector<CurvePoint> points(size_t most) const;

  private:
    struct Slot {
        double seconds = 0, decode = 0, own = 0, prefix = 0, pages = 0; // sums of value x seconds
        int64_t pages_peak = 0;
        void add(const Slot &other);
    };
    void spread(double begin, double end, const BatchTokens &batch);
    void halve();

    std::vector<Slot> slots_;
    double width_ = 1e-3; // duration of a slot in seconds
    double last_ = 0;
    int64_t batches_ = 0;
};

} // namespace batchllm
