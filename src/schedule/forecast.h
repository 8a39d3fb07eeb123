// Observations of the job so far -> predictions of how long outputs will be and of how many KV
// slots the admitted requests will use at once. A wrong prediction costs a preemption or leaves a
// page idle; it never changes a result.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kv/page_pool.h"

namespace batchllm {

// A request's remaining tokens: it is equally likely to end after each of these numbers of steps.
constexpr size_t outlook_points = 4;
using Outlook = std::array<int64_t, outlook_points>;

// How many more tokens a request will generate, estimated with a life table. max_tokens is divided
// into ages; each age's rate is (requests that stopped in it) / (requests that reached it).
// Requests that are still running count as well; otherwise short requests, which finish first,
// would bias the estimate. The table can follow any distribution of lengths. An age with few
// observations is pulled towards the average of all ages. Before anything is known, a request is
// expected to run to max_tokens.
//
// Observations decay, because groups differ and come one after another: their weight halves after
// as many steps as the longest request may take. The decay counts steps, not requests: requests
// reach an age before they stop in it, so if many run in step, decay by requests would give the
// stops more weight.
class LengthEstimate {
  public:
    static constexpr size_t ages = 32;

    LengthEstimate();

    // A request that had `before` tokens has generated one more.
    void generated(int32_t max_tokens, int64_t before) {
        const size_t age = age_of(max_tokens, before);
        for (size_t i = before > 0 ? age_of(max_tokens, before - 1) + 1 : 0; i <= age; ++i)
            reached_[i] += 1;
    }
    void ended(int32_t max_tokens, int64_t length) {
        if (length < max_tokens) stopped_[age_of(max_tokens, length - 1)] += 1;
    }
    // A step has passed; the job's longest output is `longest`.
    void forget(int64_t longest);

    // Brings `outlook` and `share` up to date with what has been generated and ended.
    void update();

    double share() const; // expected length / max_tokens; in (0, 1]

    // For a request with `generated` tokens. `preempted`: it has outgrown a prediction before, so
    // it is expected to double, which limits how often it can do so again.
    Outlook outlook(int32_t max_tokens, int64_t generated, bool preempted) const;

  private:
    static size_t age_of(int32_t max_tokens, int64_t generated) {
        return static_cast<size_t>(
            std::clamp<int64_t>(generated * static_cast<int64_t>(ages) / max_tokens, 0, ages - 1));
    }

    std::array<double, ages> reached_{};
    std::array<double, ages> stopped_{}; // before max_tokens
    // Remaining ages at the start of each age, in `ages`ths of max_tokens: quantiles 1/8, 3/8, 5/8, 7/8.
    std::array<std::array<double, outlook_points>, ages + 1> left_;
};

// The peak number of KV slots, over all KV groups, that a set of requests is expected to use in the
// future if each grows by one token per step until its end. Old requests end before young ones have
// grown, so the peak is less than the sum of their final sizes. In a group with a window, a request
// stops growing when it fills the window.
//
// Time is divided into `buckets` spans, and a request is divided among those in which it may end.
// Adding is O(1), a query O(buckets).
class MemoryForecast {
  public:
    static constexpr int32_t buckets = 64;

    explicit MemoryForecast(std::span<const KvWindow> windows = {}, int32_t page_tokens = 1);

    // longest: an upper bound on the steps that any request has left.
    void clear(int64_t longest);
    void add(int64_t slots_now, const Outlook &outlook);

    // The peak if one more request were added, or `count` equal ones.
    int64_t peak_with(int64_t slots_now, const Outlook &outlook, int64_t count = 1) const;
    // What a request that has stored so many tokens takes, of all groups.
    int64_t slots(int64_t stored) const;

  private:
    struct Bucket { // the requests that end in it, each in outlook_points parts
        int64_t parts = 0;
        int64_t slots_now = 0;
        int64_t slots_at_end = 0;
        // Slots of full windows: those of requests that end in this bucket, and those of windows
        // that are full from this bucket on.
        int64_t full_end = 0;
        int64_t full_begin = 0;
    };
    using Buckets = std::array<Bucket, buckets>;
    size_t bucket_of(int64_t steps_left) const {
        return static_cast<size_t>(std::clamp<int64_t>(steps_left >> shift_, 0, buckets - 1));
    }
    static void add_part(Bucket *bucket, int64_t groups, int64_t slots_now, int64_t steps_left) {
        bucket->parts += groups;
        bucket->slots_now += groups * slots_now;
        bucket->slots_at_end += groups * (slots_now + steps_left);
    }
    void add_to(Buckets *all, int64_t slots_now, const Outlook &outlook, int64_t count) const;

    struct Kind { // a set of KV groups
        int64_t groups;
        int64_t most_slots; // per request
    };
    std::vector<Kind> kinds_;
    int32_t shift_ = 0; // a bucket is 2^shift_ steps
    Buckets buckets_{};
};

} // namespace batchllm
