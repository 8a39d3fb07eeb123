// The frequencies of rotary position embeddings. The arithmetic is float32 with the same operations
// as in transformers, so that both get the same angles: a difference in the last bit of a frequency
// is visible in the angle at position 100,000.
#include <algorithm>
#include <cmath>

#include "model/rope.h"

namespace batchllm {
namespace {

// How much of a pair's frequency yarn leaves unchanged: 1 for fast pairs, 0 for slow ones.
class YarnRamp {
  public:
    YarnRamp(const RopeConfig &rope, int32_t dims) {
        double low = pair_that_turns(rope.beta_fast, rope, dims);
        double high = pair_that_turns(rope.beta_slow, rope, dims);
        if (rope.truncate) {
            low = std::floor(low);
            high = std::ceil(high);
        }
        low = std::max(low, 0.0);
        high = std::min(high, static_cast<double>(dims - 1));
        if (low == high) high += 0.001;
        first_ = static_cast<float>(low);
        length_ = static_cast<float>(high - low);
    }

    float kept(size_t pair) const {
        const float ramp = (static_cast<float>(pair) - first_) / length_;
        return 1.0F - std::clamp(ramp, 0.0F, 1.0F);
    }

  private:
    // The fractional index of the pair that turns this many times within the original length.
    static double pair_that_turns(double times, const RopeConfig &rope, int32_t dims) {
        const double length = static_cast<double>(rope.original_max_positions);
        return dims * std::log(length / (times * 2 * M_PI)) / (2 * std::log(rope.theta));
    }

    float first_;
    float length_;
};

} // namespace

std::vector<float> rope_frequencies(const RopeConfig &rope, int32_t dims) {
    std::vector<float> frequencies(static_cast<size_t>(dims / 2));
    const float theta = static_cast<float>(rope.theta);
    const float factor = static_cast<float>(rope.factor);
    const float low = static_cast<float>(rope.low_freq_factor);
    const double context = static_cast<double>(rope.original_max_positions);
    const float low_wavelength = static_cast<float>(context / rope.low_freq_factor);
    const float high_wavelength = static_cast<float>(context / rope.high_freq_factor);
    const YarnRamp ramp(rope, dims);
    const auto turning = static_cast<size_t>(rope.part * dims / 2);
    for (size_t i = 0; i < frequencies.size(); ++i) {
        const float exponent = static_cast<float>(2 * i) / static_cast<float>(dims);
        // Through double: the correctly rounded float power.
        const float power =
            static_cast<float>(std::pow(static_cast<double>(theta), static_cast<double>(exponent)));
        float frequency = 1.0F / power;
        if (rope.kind == RopeKind::linear) {
            frequency /= factor;
        } else if (rope.kind == RopeKind::proportional) {
            frequency = i < turning ? frequency / factor : 0;
        } else if (rope.kind == RopeKind::llama3) {
            // Long waves are slowed by the factor, short ones are unchanged, and those between are
            // blended; in Llama 4 there are none between.
            const float wavelength = (1.0F / frequency) * static_cast<float>(2 * M_PI);
            if (wavelength > low_wavelength) {
                frequency /= factor;
            } else if (!(wavelength < high_wavelength) && high_wavelength < low_wavelength) {
                const float turns = (1.0F / wavelength) * static_cast<float>(context);
                const float smooth = (turns - low) / static_cast<float>(rope.high_freq_factor -
                                                                        rope.low_freq_factor);
                frequency = (1.0F - smooth) * frequency / factor + smooth * frequency;
            }
        } else if (rope.kind == RopeKind::yarn) {
            const float kept = ramp.kept(i);
            frequency = 1.0F / (factor * power) * (1.0F - kept) + frequency * kept;
        } else if (rope.kind == RopeKind::longrope) {
            frequency = 1.0F / (rope.factors[i] * power);
        }
        frequencies[i] = frequency;
    }
    return frequencies;
}

} // namespace batchllm
