// The reference sampler. It passes over the vocabulary a few times and never sorts it: top-k is a
// selection, top-p a histogram of the weights (only the bucket at the limit is sorted), and the
// draw uses sums of blocks.
#include "sample/sampling.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace batchllm {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

// exp(x) for x <= 0 within 2 ulp; 0 below -87.7. Free of branches and calls, so that compilers
// vectorise the loops that use it.
inline float exp_nonpositive(float x) {
    // Clamped to -88, whose exponent below becomes that of 0. The comparison is between integers,
    // where lower negative floats are larger: a choice between floats would become a branch and
    // prevent vectorisation.
    const float clamped =
        std::bit_cast<float>(std::min(std::bit_cast<uint32_t>(x), std::bit_cast<uint32_t>(-88.0F)));
    // Adding 1.5 * 2^23 rounds to the nearest integer, which is then in the low bits.
    constexpr float rounder = 12582912.0F;
    const float shifted = clamped * 1.44269504F + rounder;
    const float whole = shifted - rounder;
    // Two-part ln 2 (Cody and Waite): the first part times a small integer is exact.
    const float rest = (clamped - whole * 0.693359375F) - whole * -2.12194440e-4F;
    float power = 1.9875691500e-4F;
    power = power * rest + 1.3981999507e-3F;
    power = power * rest + 8.3334519073e-3F;
    power = power * rest + 4.1665795894e-2F;
    power = power * rest + 1.6666665459e-1F;
    power = power * rest + 5.0000001201e-1F;
    power = power * rest * rest + rest + 1.0F;
    const auto exponent = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(rounder);
    const float scale = std::bit_cast<float>((exponent + 127U) << 23U);
    return power * scale;
}

// The largest logit. Not finite: there is a NaN or +inf, or nothing but -inf.
struct Extent {
    float largest;
    bool finite;
};

// Maps floats to integers in the same order, which compilers compare several at a time. NaNs of
// either sign are outside the infinities.
constexpr int32_t order_of(float value) {
    const auto bits = std::bit_cast<int32_t>(value);
    return bits ^ ((bits >> 31) & INT32_MAX);
}

Extent find_extent(std::span<const float> logits) {
    int32_t most = INT32_MIN;
    int32_t least = INT32_MAX;
    for (const float logit : logits) {
        const int32_t order = order_of(logit);
        most = order > most ? order : most;
        least = order < least ? order : least;
    }
    const bool finite = !logits.empty() && most < order_of(infinity) &&
                        least >= order_of(-infinity) && most > order_of(-infinity);
    return {std::bit_cast<float>(most ^ ((most >> 31) & INT32_MAX)), finite};
}

constexpr size_t block = 1024;

// Sum of one block's weights [count]. Uses eight running sums so that no addition waits for the
// previous one.
double block_sum(const float *weights, size_t count) {
    double lanes[8] = {};
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        for (size_t lane = 0; lane < 8; ++lane) {
            lanes[lane] += static_cast<double>(weights[i + lane]);
        }
    }
    for (; i < count; ++i) lanes[i % 8] += static_cast<double>(weights[i]);
    return ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) +
           ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
}

// ln of the sum of exp over all logits.
double log_sum_exp(std::span<const float> logits, float largest) {
    double total = 0;
    float weights[block];
    for (size_t begin = 0; begin < logits.size(); begin += block) {
        const size_t count = std::min(block, logits.size() - begin);
        const float *const part = logits.data() + begin;
        for (size_t i = 0; i < count; ++i) weights[i] = exp_nonpositive(part[i] - largest);
        total += block_sum(weights, count);
    }
    return static_cast<double>(largest) + std::log(total);
}

// Larger logit first; ties: lower id first.
struct LikelyToken {
    float logit;
    int32_t token;
    bool operator<(const LikelyToken &other) const {
        return logit != other.logit ? logit > other.logit : token < other.token;
    }
};

// The first `count` candidates, unordered. Collects up to twice as many and halves them when full,
// so the whole costs O(vocabulary).
std::vector<LikelyToken> select_largest(std::span<const float> logits, size_t count) {
    std::vector<LikelyToken> kept;
    const size_t room = std::min(2 * count + 64, logits.size());
    kept.reserve(room);
    float least = -infinity; // other logits can no longer be among the first
    const auto halve = [&] {
        if (kept.size() <= count) return;
        const auto last = kept.begin() + static_cast<std::ptrdiff_t>(count) - 1;
        std::nth_element(kept.begin(), last, kept.end());
        least = last->logit;
        kept.resize(count);
    };
    for (size_t i = 0; i < logits.size(); ++i) {
        // Ids increase, so an equal one comes after all that are kept.
        if (!(logits[i] > least)) continue;
        kept.push_back({logits[i], static_cast<int32_t>(i)});
        if (kept.size() == room) halve();
    }
    halve();
    return kept;
}

void list_likeliest(std::span<const float> logits, int32_t count, double log_total,
                    std::vector<TopLogprob> *top) {
    auto likeliest = select_largest(logits, static_cast<size_t>(count));
    std::sort(likeliest.begin(), likeliest.end());
    for (const LikelyToken &candidate : likeliest) {
        if (candidate.logit == -infinity) break;
        const double logprob = static_cast<double>(candidate.logit) - log_total;
        top->push_back({candidate.token, static_cast<float>(logprob)});
    }
}

// Changes some logits and remembers what they were.
class Editor {
  public:
    explicit Editor(std::span<float> logits) : logits_(logits) {}

    template <typename Change> void edit(int32_t token, const Change &change) {
        if (token < 0 || static_cast<size_t>(token) >= logits_.size()) return;
        float &logit = logits_[static_cast<size_t>(token)];
        before_.emplace_back(token, logit);
        logit = change(logit);
    }
    bool edited() const { return !before_.empty(); }
    // A token's logit as the model computed it.
    float original(int32_t token) const {
        for (const auto &[edited, logit] : before_) { // the first edit saved the model's own
            if (edited == token) return logit;
        }
        return logits_[static_cast<size_t>(token)];
    }

  private:
    std::span<float> logits_;
    std::vector<std::pair<int32_t, float>> before_;
};

void apply_forbidden(const SampleInput &input, Editor *editor) {
    if (!forbids_tokens(*input.params)) return;
    std::vector<int32_t> tokens;
    add_forbidden(input, &tokens);
    for (const int32_t token : tokens) editor->edit(token, [](float) { return -infinity; });
}

void apply_repetition(const SampleInput &input, size_t vocabulary, Editor *editor) {
    const float penalty = input.params->repetition_penalty;
    if (penalty == 1) return;
    std::vector<uint64_t> seen(vocabulary / 64 + 1);
    for (const auto &tokens : {input.prompt, input.output}) {
        for (const int32_t token : tokens) {
            if (token < 0 || static_cast<size_t>(token) >= vocabulary) continue;
            uint64_t &word = seen[static_cast<size_t>(token) / 64];
            const uint64_t bit = uint64_t{1} << (static_cast<uint32_t>(token) % 64);
            if ((word & bit) != 0) continue;
            word |= bit;
            editor->edit(
                token, [&](float logit) { return logit > 0 ? logit / penalty : logit * penalty; });
        }
    }
}

void apply_presence_and_frequency(const SampleInput &input, Editor *editor) {
    const SamplingParams &params = *input.params;
    if (params.presence_penalty == 0 && params.frequency_penalty == 0) return;
    std::vector<int32_t> tokens(input.output.begin(), input.output.end());
    std::sort(tokens.begin(), tokens.end());
    for (size_t begin = 0, end = 0; begin < tokens.size(); begin = end) {
        while (end < tokens.size() && tokens[end] == tokens[begin]) ++end;
        const auto times = static_cast<float>(end - begin);
        editor->edit(tokens[begin], [&](float logit) {
            return (logit - params.presence_penalty) - params.frequency_penalty * times;
        });
    }
}

int32_t argmax(std::span<const float> logits, float largest) {
    return static_cast<int32_t>(std::find(logits.begin(), logits.end(), largest) - logits.begin());
}

// The last candidate that top-p keeps, in LikelyToken's order; its token is an index into logits.
LikelyToken top_p_limit(std::span<const float> logits, float largest, float temperature,
                        float top_p) {
    // Buckets by distance from the largest: everything in a bucket comes before everything in the
    // next.
    constexpr size_t buckets = 4096;
    constexpr float per_unit = 64; // 4096 buckets reach exp(-64); smaller weights share the last
                                   // one
    std::vector<double> weight(buckets);
    const auto bucket_of = [&](float logit) {
        const float distance = (largest - logit) / temperature * per_unit;
        return distance < static_cast<float>(buckets - 1) ? static_cast<size_t>(distance)
                                                          : buckets - 1;
    };
    const auto weight_of = [&](float logit) {
        return static_cast<double>(exp_nonpositive((logit - largest) / temperature));
    };
    for (const float logit : logits) weight[bucket_of(logit)] += weight_of(logit);
    double total = 0;
    for (const double part : weight) total += part;
    const double wanted = static_cast<double>(top_p) * total;
    double before = 0;
    size_t limit = 0;
    while (limit + 1 < buckets && before + weight[limit] < wanted) before += weight[limit++];

    std::vector<LikelyToken> inside;
    for (size_t i = 0; i < logits.size(); ++i) {
        if (bucket_of(logits[i]) == limit) inside.push_back({logits[i], static_cast<int32_t>(i)});
    }
    std::sort(inside.begin(), inside.end());
    size_t last = 0;
    for (; last + 1 < inside.size(); ++last) {
        before += weight_of(inside[last].logit);
        if (before >= wanted) break;
    }
    // An empty bucket at the limit is the last one, reached because of rounding: everything is
    // kept.
    return inside.empty() ? LikelyToken{-infinity, std::numeric_limits<int32_t>::max()}
                          : inside[last];
}

// Top-p, min-p and the draw. Returns an index into logits.
size_t draw_index(std::span<const float> logits, float largest, const SampleInput &input) {
    const SamplingParams &params = *input.params;
    const float temperature = params.temperature;
    const float min_p = params.min_p;
    LikelyToken limit{-infinity, std::numeric_limits<int32_t>::max()};
    if (params.top_p < 1) limit = top_p_limit(logits, largest, temperature, params.top_p);

    // The weights of a block, 0 for those that are not kept.
    float weights[block];
    const auto weigh = [&](size_t begin, size_t count) {
        const float *const part = logits.data() + begin;
        const int32_t last = limit.token - static_cast<int32_t>(begin);
        for (size_t i = 0; i < count; ++i) {
            const float weight = exp_nonpositive((part[i] - largest) / temperature);
            // Masks instead of branches, so that this loop is vectorised.
            const uint32_t before = static_cast<uint32_t>(part[i] > limit.logit);
            const uint32_t equal = static_cast<uint32_t>(part[i] == limit.logit);
            const uint32_t kept =
                static_cast<uint32_t>(weight >= min_p) &
                (before | (equal & static_cast<uint32_t>(static_cast<int32_t>(i) <= last)));
            weights[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(weight) & (0U - kept));
        }
    };
    std::vector<double> sums;
    sums.reserve(logits.size() / block + 1);
    double total = 0;
    for (size_t begin = 0; begin < logits.size(); begin += block) {
        const size_t count = std::min(block, logits.size() - begin);
        weigh(begin, count);
        sums.push_back(block_sum(weights, count));
        total += sums.back();
    }
    const double target = random_uniform(input.random_key, input.position) * total;
    double reached = 0;
    size_t last = logits.size();
    for (size_t i = 0; i < sums.size(); ++i) {
        if (reached + sums[i] <= target) {
            reached += sums[i];
            continue;
        }
        const size_t begin = i * block;
        const size_t count = std::min(block, logits.size() - begin);
        weigh(begin, count);
        for (size_t j = 0; j < count; ++j) {
            if (weights[j] == 0) continue;
            reached += static_cast<double>(weights[j]);
            last = begin + j;
            if (reached > target) return last;
        }
    }
    if (last < logits.size()) return last;
    // Because of rounding, the target is beyond the last block. Every filter keeps the most likely
    // token.
    return static_cast<size_t>(argmax(logits, largest));
}

int32_t draw(std::span<const float> logits, float largest, const SampleInput &input) {
    const auto top_k = static_cast<size_t>(input.params->top_k);
    if (top_k == 0 || top_k >= logits.size()) {
        return static_cast<int32_t>(draw_index(logits, largest, input));
    }
    // Only the k largest and those that equal the smallest of them remain, by increasing id.
    float least = infinity;
    for (const LikelyToken &candidate : select_largest(logits, top_k)) {
        least = std::min(least, candidate.logit);
    }
    std::vector<float> kept;
    std::vector<int32_t> tokens;
    for (size_t i = 0; i < logits.size(); ++i) {
        if (logits[i] < least || logits[i] == -infinity) continue;
        kept.push_back(logits[i]);
        tokens.push_back(static_cast<int32_t>(i));
    }
    return tokens[draw_index(kept, largest, input)];
}

void apply_mask(TokenMask mask, std::span<float> logits) {
    for (size_t token = 0; token < logits.size(); ++token) {
        if ((mask[token / 32] >> (token % 32) & 1) == 0) logits[token] = -infinity;
    }
}

} // namespace

void sample(std::span<float> logits, const SampleInput &input, SampleOutput *output) {
    const SamplingParams &params = *input.params;
    *output = SampleOutput{};
    if (input.mask != nullptr) apply_mask(input.mask, logits);
    Extent extent = find_extent(logits);
    output->finite = extent.finite;
    if (!extent.finite) return;

    double log_total = 0;
    if (params.logprobs >= 0) {
        log_total = log_sum_exp(logits, extent.largest);
        if (params.logprobs > 0) list_likeliest(logits, params.logprobs, log_total, &output->top);
    }

    Editor editor(logits);
    apply_forbidden(input, &editor);
    for (const auto &[token, bias] : params.bias) {
        editor.edit(token, [add = bias](float logit) { return logit + add; });
    }
    apply_repetition(input, logits.size(), &editor);
    apply_presence_and_frequency(input, &editor);
    if (editor.edited()) extent = find_extent(logits);
    if (!extent.finite) {
        *output = SampleOutput{};
        output->finite = false;
        return;
    }
    output->token =
        params.greedy() ? argmax(logits, extent.largest) : draw(logits, extent.largest, input);
    if (params.logprobs >= 0) {
        output->logprob =
            static_cast<float>(static_cast<double>(editor.original(output->token)) - log_total);
    }
}

bool score(std::span<const float> logits, std::span<const int32_t> targets,
           std::span<float> logprobs, int32_t likeliest, std::vector<TopLogprob> *top) {
    const Extent extent = find_extent(logits);
    if (!extent.finite) return false;
    const double log_total = log_sum_exp(logits, extent.largest);
    for (size_t i = 0; i < targets.size(); ++i) {
        const float logit = logits[static_cast<size_t>(targets[i])];
        logprobs[i] = static_cast<float>(static_cast<double>(logit) - log_total);
    }
    if (likeliest > 0) list_likeliest(logits, likeliest, log_total, top);
    return true;
}

} // namespace batchllm
