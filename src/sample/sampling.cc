// The reference sampler. A row's vocabulary is walked a few times and never sorted: top-k is a
// selection, top-p a histogram of the weight whose one bucket at the limit is sorted, and the draw
// goes through sums of blocks.
#include "sample/sampling.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace batchllm {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

// exp(x) for x <= 0 within 2 units in the last place; 0 below -87. Without branches or calls, so
// that compilers vectorise the loops that use it.
inline float exp_nonpositive(float x) {
    const float clamped = x > -87.0F ? x : -87.0F;
    // Adding 1.5 * 2^23 rounds to the nearest whole number, which is then in the low bits.
    constexpr float rounder = 12582912.0F;
    const float shifted = clamped * 1.44269504F + rounder;
    const float whole = shifted - rounder;
    // Two-part ln 2 (Cody and Waite): the first part times a small whole number is exact.
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
    return x > -87.0F ? power * scale : 0.0F;
}

// The largest logit; a NaN or +inf anywhere, or nothing but -inf, is not finite.
struct Extent {
    float largest;
    bool finite;
};

Extent find_extent(std::span<const float> logits) {
    float largest = -infinity;
    int32_t bad = 0;
    for (const float logit : logits) {
        bad |= static_cast<int32_t>(!(logit < infinity)); // a NaN fails the comparison
        largest = logit > largest ? logit : largest;
    }
    return {largest, bad == 0 && largest > -infinity};
}

constexpr size_t block = 1024;

// ln of the sum of exp over all logits.
double log_sum_exp(std::span<const float> logits, float largest) {
    double total = 0;
    for (size_t begin = 0; begin < logits.size(); begin += block) {
        const size_t end = std::min(begin + block, logits.size());
        float weights[block];
        for (size_t i = begin; i < end; ++i) {
            weights[i - begin] = exp_nonpositive(logits[i] - largest);
        }
        for (size_t i = begin; i < end; ++i) total += static_cast<double>(weights[i - begin]);
    }
    return static_cast<double>(largest) + std::log(total);
}

// Larger logit first, lower id of equals.
struct Candidate {
    float logit;
    int32_t token;
    bool operator<(const Candidate &other) const {
        return logit != other.logit ? logit > other.logit : token < other.token;
    }
};

// The first `count` candidates, unordered. Keeps up to twice as many and halves them when full, so
// that the whole costs O(vocabulary).
std::vector<Candidate> select_largest(std::span<const float> logits, size_t count) {
    std::vector<Candidate> kept;
    const size_t room = std::min(2 * count + 64, logits.size());
    kept.reserve(room);
    float least = -infinity; // logits not above it cannot be among the first any more
    const auto halve = [&] {
        if (kept.size() <= count) return;
        const auto last = kept.begin() + static_cast<std::ptrdiff_t>(count) - 1;
        std::nth_element(kept.begin(), last, kept.end());
        least = last->logit;
        kept.resize(count);
    };
    for (size_t i = 0; i < logits.size(); ++i) {
        // Ids rise: an equal one comes after all that are kept.
        if (!(logits[i] > least)) continue;
        kept.push_back({logits[i], static_cast<int32_t>(i)});
        if (kept.size() == room) halve();
    }
    halve();
    return kept;
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
    float original(int32_t token) const {
        for (const auto &[edited, logit] : before_) { // the first edit met the model's own
            if (edited == token) return logit;
        }
        return logits_[static_cast<size_t>(token)];
    }

  private:
    std::span<float> logits_;
    std::vector<std::pair<int32_t, float>> before_;
};

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

// The last token that top-p keeps, in the order of Candidate, among logits >= least.
Candidate top_p_limit(std::span<const float> logits, float largest, float least, float temperature,
                      float top_p) {
    // Bucket by distance from the largest: all of one bucket stands before all of the next.
    constexpr size_t buckets = 4096;
    constexpr float per_unit = 64; // 4096 buckets reach exp(-64); what is below shares the last one
    std::vector<double> weight(buckets);
    const auto bucket_of = [&](float logit) {
        const float distance = (largest - logit) / temperature * per_unit;
        return distance < static_cast<float>(buckets - 1) ? static_cast<size_t>(distance)
                                                          : buckets - 1;
    };
    const auto weight_of = [&](float logit) {
        return static_cast<double>(exp_nonpositive((logit - largest) / temperature));
    };
    for (const float logit : logits) {
        if (logit >= least) weight[bucket_of(logit)] += weight_of(logit);
    }
    double total = 0;
    for (const double part : weight) total += part;
    const double wanted = static_cast<double>(top_p) * total;
    double before = 0;
    size_t limit = 0;
    while (limit + 1 < buckets && before + weight[limit] < wanted) before += weight[limit++];

    std::vector<Candidate> inside;
    for (size_t i = 0; i < logits.size(); ++i) {
        if (logits[i] >= least && bucket_of(logits[i]) == limit) {
            inside.push_back({logits[i], static_cast<int32_t>(i)});
        }
    }
    std::sort(inside.begin(), inside.end());
    size_t last = 0;
    for (; last + 1 < inside.size(); ++last) {
        before += weight_of(inside[last].logit);
        if (before >= wanted) break;
    }
    // An empty bucket at the limit is the last one, reached by rounding: everything is kept.
    return inside.empty() ? Candidate{-infinity, std::numeric_limits<int32_t>::max()}
                          : inside[last];
}

int32_t draw(std::span<const float> logits, float largest, const SampleInput &input) {
    const SamplingParams &params = *input.params;
    float least = std::numeric_limits<float>::lowest(); // -inf is never kept
    if (params.top_k > 0 && static_cast<size_t>(params.top_k) < logits.size()) {
        const auto kept = select_largest(logits, static_cast<size_t>(params.top_k));
        float smallest = infinity;
        for (const Candidate &candidate : kept) smallest = std::min(smallest, candidate.logit);
        least = std::max(smallest, least);
    }
    Candidate limit{-infinity, std::numeric_limits<int32_t>::max()};
    if (params.top_p < 1) {
        limit = top_p_limit(logits, largest, least, params.temperature, params.top_p);
    }
    const auto kept_weight = [&](size_t token) {
        const float logit = logits[token];
        const float weight = exp_nonpositive((logit - largest) / params.temperature);
        const bool kept = logit >= least && weight >= params.min_p &&
                          !(limit < Candidate{logit, static_cast<int32_t>(token)});
        return kept ? weight : 0.0F;
    };

    std::vector<double> sums;
    sums.reserve(logits.size() / block + 1);
    double total = 0;
    for (size_t begin = 0; begin < logits.size(); begin += block) {
        double sum = 0;
        const size_t end = std::min(begin + block, logits.size());
        float weights[block];
        for (size_t i = begin; i < end; ++i) weights[i - begin] = kept_weight(i);
        for (size_t i = begin; i < end; ++i) sum += static_cast<double>(weights[i - begin]);
        sums.push_back(sum);
        total += sum;
    }
    const double target = random_uniform(input.random_key, input.position) * total;
    double reached = 0;
    int32_t last = argmax(logits, largest); // kept by every filter
    for (size_t i = 0; i < sums.size(); ++i) {
        if (reached + sums[i] <= target) {
            reached += sums[i];
            continue;
        }
        const size_t end = std::min((i + 1) * block, logits.size());
        for (size_t token = i * block; token < end; ++token) {
            const float weight = kept_weight(token);
            if (weight == 0) continue;
            reached += static_cast<double>(weight);
            last = static_cast<int32_t>(token);
            if (reached > target) return last;
        }
    }
    return last; // rounding: the sum fell short by its last bit
}

} // namespace

void sample(std::span<float> logits, const SampleInput &input, SampleOutput *output) {
    const SamplingParams &params = *input.params;
    *output = SampleOutput{};
    Extent extent = find_extent(logits);
    output->finite = extent.finite;
    if (!extent.finite) return;

    double log_total = 0;
    if (params.logprobs >= 0) {
        log_total = log_sum_exp(logits, extent.largest);
        if (params.logprobs > 0) {
            auto likeliest = select_largest(logits, static_cast<size_t>(params.logprobs));
            std::sort(likeliest.begin(), likeliest.end());
            for (const Candidate &candidate : likeliest) {
                if (candidate.logit == -infinity) break;
                output->top.push_back(
                    {candidate.token,
                     static_cast<float>(static_cast<double>(candidate.logit) - log_total)});
            }
        }
    }

    Editor editor(logits);
    for (const auto &[token, bias] : params.bias) {
        editor.edit(token, [add = bias](float logit) { return logit + add; });
    }
    apply_repetition(input, logits.size(), &editor);
    apply_presence_and_frequency(input, &editor);
    extent = find_extent(logits);
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
           std::span<float> logprobs) {
    const Extent extent = find_extent(logits);
    if (!extent.finite) return false;
    const double log_total = log_sum_exp(logits, extent.largest);
    for (size_t i = 0; i < targets.size(); ++i) {
        const float logit = logits[static_cast<size_t>(targets[i])];
        logprobs[i] = static_cast<float>(static_cast<double>(logit) - log_total);
    }
    return true;
}

} // namespace batchllm
