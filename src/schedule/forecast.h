// What the job has shown so far -> how long outputs will be, and how many pages the admitted
// requests will come to hold at once. Predictions only: a wrong one costs a preemption or an idle
// page, never a result.
#pragma once

#include <array>
#include <cstdint>

namespace batchllm {

// Expected output length as a share of max_tokens.
//
// Requests that are still decoding count too. Averaging only the finished ones would favour the
// short, which finish first; instead the share is (all progress made) / (requests that ended), the
// maximum-likelihood mean of lengths of which some are known only to be longer than so far
// (right-censored, exponential). It starts from a few imagined requests of full length, and
// forgets: a request counts for half once `half_life` others have ended, for groups differ and come
// one after the other.
class LengthEstimate {
  public:
    static constexpr int32_t half_life = 256;

    void generated(int32_t max_tokens) { progress_ += 1.0 / max_tokens; }
    void ended();

    double share() const; // in (0, 1]

    // Tokens that a request is expected to generate beyond those it has. `preempted`: such a request
    // has outgrown a prediction once; expecting it to double bounds how often that can happen to it.
    int64_t remaining(int32_t max_tokens, int64_t generated, bool preempted) const;

  private:
    // Both start as if four requests of full length had ended.
    double progress_ = 4; // in max_tokens of the request concerned
    double ended_ = 4;
};

// The most KV slots that a set of requests will hold at any one time to come, each growing by one
// token a step until its expected end and then gone. Old requests end before young ones have grown,
// so this is less than the sum of their final sizes, and more fits.
//
// Time is cut into `buckets` spans; a request falls into the one in which it ends. Adding is O(1),
// asking O(buckets).
class MemoryForecast {
  public:
    static constexpr int32_t buckets = 64;

    // longest: no request remains for more steps than this.
    void clear(int64_t longest);
    void add(int64_t slots_now, int64_t steps_left);

    // Peak of the slots with one more request.
    int64_t peak_with(int64_t slots_now, int64_t steps_left) const;

  private:
    struct Bucket {
        int64_t requests = 0;
        int64_t slots_now = 0;
        int64_t slots_at_end = 0;
    };
    int32_t bucket_of(int64_t steps_left) const;

    int64_t width_ = 1; // steps a bucket
    std::array<Bucket, buckets> buckets_{};
};

} // namespace batchllm
