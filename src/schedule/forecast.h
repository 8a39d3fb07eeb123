// Observations of the job so far -> how long outputs will be, and how many KV slots the admitted
// requests will hold at once. These are only predictions: a wrong one costs a preemption or an idle
// page, never a result.
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

// How many more tokens a request will generate, by a life table: max_tokens is cut into ages, and
// for each age the share of requests that stop in it is (requests that stopped) / (requests that
// reached it). Requests that are still running count as well; otherwise the short ones, which finish
// first, would bias it. The table can follow any distribution of lengths. An age with few observations
// leans towards the average of all ages; before anything is known a request is expected to run to
// max_tokens.
//
// Observations decay, because groups differ and come one after another: their weight is halved
// after as many steps as the longest request may take. (The decay is by steps, not by requests:
// requests reach an age before they stop in it, so if many run in step, the stops would weigh
// more.)
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
    // A step has passed, in a job whose longest output is `longest`.
    void forget(int64_t longest);

    // Brings `outlook` and `share` up to date with what has been generated and ended.
    void update();

    double share() const; // expected length / max_tokens; in (0, 1]

    // For a request with `generated` tokens. `preempted`: it has outgrown a prediction once;
    // expecting it to double limits how often that can happen.
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

// The peak number of KV slots, in all KV groups together, that a set of requests is expected to
// hold in the future, each growing by one token per step until its end. Old requests end before
// young ones have grown, so the peak is less than the sum of their final sizes. In a group with a
// window a request stops growing when it fills the window.
//
// Time is cut into `buckets` spans; a request is divided among those in which it may end. Adding is
// O(1), a query O(buckets).
class MemoryForecast {
  public:
    static constexpr int32_t buckets = 64;

    explicit MemoryForecast(std::span<const KvWindow> windows = {}, int32_t page_tokens = 1);

    // longest: no request has more steps left than this.
    void clear(int64_t longest);
    void add(int64_t slots_now, const Outlook &outlook);

    // The peak if one more request is added.
    int64_t peak_with(int64_t slots_now, const Outlook &outlook) const;

  private:
    struct Bucket { // the requests that end in it, each in outlook_points parts
        int64_t parts = 0;
        int64_t slots_now = 0;
        int64_t slots_at_end = 0;
        // Slots of full windows: of requests that end in this bucket, and of windows that are full from it on.
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
    void add_to(Buckets *all, int64_t slots_now, const Outlook &outlook) const;

    struct Kind { // of KV groups
        int64_t groups;
        int64_t most_slots; // of a request
    };
    std::vector<Kind> kinds_;
    int32_t shift_ = 0; // a bucket is 2^shift_ steps
    Buckets buckets_{};
};

} // namespace batchllm
