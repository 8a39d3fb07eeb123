// A needle in noise, on the host: many keys, one of which matches a query a little better than a
// few others, with values that are codes. Computes attention over it in float64, and as products in
// fp8 would.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "base/narrow_floats.h"

namespace batchllm {

constexpr int32_t kDim = 128, kHeads = 8, kKvHeads = 2, kQueries = 32; // queries: tokens
constexpr int32_t kRatio = kHeads / kKvHeads;
constexpr double kScoreScale = 0.08838834764831845; // 1 / sqrt(kDim)

inline float in_bf16(double x) {
    return bfloat16_to_float(float_to_bfloat16(static_cast<float>(x)));
}

// The byte of the nearest e4m3 number, ties to even; saturates.
inline uint8_t e4m3_of(double x) {
    const auto size = static_cast<float>(std::min(std::fabs(x), double{kMostE4m3}));
    const auto *const end = kE4m3Floats.begin() + 0x7F;
    const auto *above = std::lower_bound(kE4m3Floats.begin(), end, size);
    auto byte = static_cast<uint8_t>(above - kE4m3Floats.begin());
    if (byte > 0) {
        const float up = kE4m3Floats[byte] - size, down = size - kE4m3Floats[byte - 1U];
        if (down < up || (down == up && byte % 2 == 1)) --byte;
    }
    return static_cast<uint8_t>(std::signbit(x) ? byte | 0x80 : byte);
}

inline double code_sign(int32_t code, int32_t d) { // rows of a Hadamard matrix: orthogonal
    return std::popcount(static_cast<uint32_t>(code & d)) % 2 == 0 ? 1 : -1;
}

// Each query has a needle with a code, and three keys with other codes whose scores are 0.05 to 0.5 below its own.
// All other keys together weigh 2.5 times as much as the needle.
struct NeedleTask {
    int32_t keys;            // keys that all queries see; each query also sees its own
    std::vector<float> q;    // [kQueries, kHeads, kDim] rounded to bf16
    std::vector<float> k, v; // [kKvHeads, keys + kQueries, kDim] the same
    std::vector<float> gains = std::vector<float>(kDim); // for the elements of a code
    std::vector<int32_t> codes;                          // [kQueries, kHeads] codes of the needles
    // Keys and values in e4m3: the bytes, and the numbers that they represent.
    std::vector<float> k_scale{1, 4}, v_scale{1, 1}; // [kKvHeads]
    std::vector<uint8_t> k_bytes, v_bytes;
    std::vector<float> k_stored, v_stored;

    NeedleTask(int32_t count, uint64_t seed) : keys(count) {
        std::mt19937_64 random(seed);
        std::normal_distribution<double> normal;
        for (float &gain : gains) gain = static_cast<float>(std::exp(0.5 * normal(random)));
        const auto all = static_cast<size_t>(kKvHeads * (keys + kQueries)) * kDim;
        k.resize(all);
        v.resize(all);
        for (int32_t head = 0; head < kKvHeads; ++head) {
            for (int32_t key = 0; key < keys + kQueries; ++key) {
                float *const own = k.data() + place(head, key);
                for (int32_t d = 0; d < kDim; ++d) own[d] = in_bf16(size_of(head) * normal(random));
                set_code(head, key, static_cast<int32_t>(random() % kDim), &random);
            }
        }
        plant(&random);
        store();
    }

    size_t place(int32_t head, int32_t key) const {
        return static_cast<size_t>(head * (keys + kQueries) + key) * kDim;
    }

  private:
    static double size_of(int32_t head) { return head == 0 ? 1.5 : 6; } // size of keys

    void set_code(int32_t head, int32_t key, int32_t code, std::mt19937_64 *random) {
        std::normal_distribution<double> normal(1, 0.1);
        float *const own = v.data() + place(head, key);
        for (int32_t d = 0; d < kDim; ++d) {
            const double gain = static_cast<double>(gains[static_cast<size_t>(d)]);
            own[d] = in_bf16(code_sign(code, d) * gain * normal(*random));
        }
    }

    void plant(std::mt19937_64 *random) {
        std::normal_distribution<double> normal;
        std::uniform_real_distribution<double> below(0.05, 0.5);
        const double score = std::log(0.4 * keys * std::exp(0.5));
        std::vector<std::vector<bool>> taken(kKvHeads,
                                             std::vector<bool>(static_cast<size_t>(keys)));
        for (int32_t i = 0; i < kQueries * kHeads; ++i) {
            const int32_t head = i % kHeads / kRatio;
            double squares = 0;
            for (int32_t d = 0; d < kDim; ++d) {
                q.push_back(in_bf16(normal(*random) / size_of(head)));
                squares += std::pow(static_cast<double>(q.back()), 2);
            }
            const float *const query = q.data() + q.size() - kDim;
            const auto code = static_cast<int32_t>((*random)() % kDim);
            codes.push_back(code);
            for (int32_t n = 0; n < 4; ++n) {
                size_t key = 0;
                do {
                    key = (*random)() % static_cast<uint64_t>(keys);
                } while (taken[static_cast<size_t>(head)][key]);
                taken[static_cast<size_t>(head)][key] = true;
                float *const own = k.data() + place(head, static_cast<int32_t>(key));
                double already = 0;
                for (int32_t d = 0; d < kDim; ++d) already += double{query[d]} * double{own[d]};
                const double wanted = (n == 0 ? score : score - below(*random)) / kScoreScale;
                for (int32_t d = 0; d < kDim; ++d) {
                    own[d] =
                        in_bf16(double{own[d]} + double{query[d]} * (wanted - already) / squares);
                }
                set_code(head, static_cast<int32_t>(key), (code + 37 * n) % kDim, random);
            }
        }
    }

    void store() {
        const auto in_e4m3 = [&](const std::vector<float> &from, const std::vector<float> &scales,
                                 std::vector<uint8_t> *bytes, std::vector<float> *meant) {
            for (size_t i = 0; i < from.size(); ++i) {
                const float scale = scales[i / (from.size() / kKvHeads)];
                bytes->push_back(e4m3_of(double{from[i]} / double{scale}));
                meant->push_back(kE4m3Floats[bytes->back()] * scale);
            }
        };
        in_e4m3(k, k_scale, &k_bytes, &k_stored);
        in_e4m3(v, v_scale, &v_bytes, &v_stored);
    }
};

// Sums 32 products at a time, as tensor cores do for fp8: these and the sum so far are truncated to
// 14 bits, counted from the largest of them.
class NarrowSum {
  public:
    template <typename Product> void add(int32_t count, const Product &product) {
        double largest = std::fabs(sum_);
        for (int32_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(product(i)));
        if (largest == 0) return;
        const double grid = std::ldexp(1.0, std::ilogb(largest) - 13), inverse = 1 / grid;
        double units = std::trunc(sum_ * inverse);
        for (int32_t i = 0; i < count; ++i) units += std::trunc(product(i) * inverse);
        sum_ = units * grid;
    }
    double take() { return std::exchange(sum_, 0.0); }

  private:
    double sum_ = 0;
};

enum class Sums {
    exact,      // in float64
    one_level,  // products in fp8, all keys in one sum
    two_levels, // the same, with every 128 keys added to a sum in float32
};

// A query head's result. stored: uses keys and values rounded to e4m3. For products in fp8, the
// query is rounded to e4m3 with its own scale, and so are the weights, times 256.
inline std::vector<double> attend(const NeedleTask &task, int32_t query, int32_t head, Sums sums,
                                  bool stored) {
    const int32_t kv = head / kRatio;
    const std::vector<float> &ks = stored ? task.k_stored : task.k,
                             &vs = stored ? task.v_stored : task.v;
    std::vector<double> q(kDim), scores;
    double most = 0;
    for (int32_t d = 0; d < kDim; ++d) {
        q[static_cast<size_t>(d)] =
            double{task.q[static_cast<size_t>((query * kHeads + head) * kDim + d)]};
        most = std::max(most, std::fabs(q[static_cast<size_t>(d)]));
    }
    for (double &x : q) {
        if (sums == Sums::exact) break;
        const double scale = most / double{kMostE4m3};
        x = scale * double{kE4m3Floats[e4m3_of(x / scale)]};
    }
    std::vector<int32_t> seen;
    for (int32_t key = 0; key < task.keys; ++key) seen.push_back(key);
    seen.push_back(task.keys + query);
    for (const int32_t key : seen) {
        const float *const k = ks.data() + task.place(kv, key);
        double score = 0;
        NarrowSum narrow;
        for (int32_t d = 0; d < kDim; d += 32) {
            const auto product = [&](int32_t i) {
                return q[static_cast<size_t>(d + i)] * double{k[d + i]};
            };
            if (sums != Sums::exact) narrow.add(32, product);
            for (int32_t i = 0; i < 32 && sums == Sums::exact; ++i) score += product(i);
        }
        scores.push_back((sums == Sums::exact ? score : narrow.take()) * kScoreScale);
    }
    const double largest = *std::max_element(scores.begin(), scores.end());
    double total = 0;
    for (double &score : scores) {
        score = std::exp(score - largest);
        total += score;
        if (sums != Sums::exact) score = double{kE4m3Floats[e4m3_of(256 * score)]} / 256;
    }
    std::vector<double> out(kDim);
    for (int32_t d = 0; d < kDim; ++d) {
        double sum = 0;
        NarrowSum narrow;
        for (size_t first = 0; first < seen.size(); first += 32) {
            const auto count = static_cast<int32_t>(std::min<size_t>(32, seen.size() - first));
            const auto product = [&](int32_t i) {
                const size_t n = first + static_cast<size_t>(i);
                return scores[n] * double{vs[task.place(kv, seen[n]) + static_cast<size_t>(d)]};
            };
            if (sums == Sums::exact) {
                for (int32_t i = 0; i < count; ++i) sum += product(i);
            } else {
                narrow.add(count, product);
                if (sums == Sums::two_levels && first % 128 == 96) sum += narrow.take();
            }
        }
        out[static_cast<size_t>(d)] = (sum + narrow.take()) / total;
    }
    return out;
}

// The code with the largest share in the result.
template <typename Number> int32_t retrieved(const NeedleTask &task, const Number *out) {
    int32_t best = 0;
    double most = -1e300;
    for (int32_t code = 0; code < kDim; ++code) {
        double sum = 0;
        for (int32_t d = 0; d < kDim; ++d) {
            sum += static_cast<double>(out[d]) * code_sign(code, d) /
                   double{task.gains[static_cast<size_t>(d)]};
        }
        if (sum > most) best = code;
        most = std::max(most, sum);
    }
    return best;
}

} // namespace batchllm
