// Rotary position embedding as data: the angle of pair i of a head at position p is
// p * frequencies[i].
#pragma once

#include <cstdint>
#include <vector>

namespace batchllm {

enum class RopeKind : uint8_t { plain, linear, llama3, yarn, longrope, proportional };

// A rope as a configuration describes it.
struct RopeConfig {
    RopeKind kind = RopeKind::plain;
    double theta = 10000;
    double factor = 1; // for all but longrope
    double low_freq_factor = 1;
    double high_freq_factor = 4;
    int64_t original_max_positions = 8192; // llama3, yarn, longrope

    // yarn: pairs that turn more than beta_fast times within the original length are unchanged;
    // those that turn less than beta_slow times are slowed by the factor.
    double beta_fast = 32;
    double beta_slow = 1;
    bool truncate = true; // rounds the two bounds to whole pairs

    std::vector<float> factors = {}; // longrope: [dims / 2] one per pair
    double part = 1; // proportional: the share of pairs that rotate, starting with the first
};

// A rope in the form that backends need.
struct Rope {
    std::vector<float> frequencies; // [dims / 2]
    float scale = 1;                // of cosine and sine
    // The first `dims` elements of a head rotate, the others do not. Element i rotates with i +
    // dims / 2; if pairs, element 2 i with 2 i + 1.
    bool pairs = false;
    // If rows may grow longer than long_after positions, these replace `frequencies` (longrope):
    // see choose_frequencies(). Empty: there is only one set.
    std::vector<float> long_frequencies = {};
    float long_scale = 1; // replaces `scale` with them
    int64_t long_after = 0;
    // [dims / 2] by which of a token's positions a pair turns: 0 time, 1 row, 2 column. Empty: by its
    // place in the row.
    std::vector<uint8_t> axes = {};

    int32_t dims() const { return static_cast<int32_t>(2 * frequencies.size()); }
    bool operator==(const Rope &) const = default;
};

// [dims / 2], scaled as the configuration says.
std::vector<float> rope_frequencies(const RopeConfig &config, int32_t dims);

} // namespace batchllm
