// Rotary position embedding's frequencies. The arithmetic is float32, operation by operation as
// transformers does it with float32 tensors, so that both come to the same angles: a last-bit
// difference in a frequency is a visible one in the angle at position 100,000.
#include <cmath>

#include "model/rope.h"

namespace batchllm {

std::vector<float> rope_frequencies(const RopeConfig &rope, int32_t dims) {
    std::vector<float> frequencies(static_cast<size_t>(dims / 2));
    const float theta = static_cast<float>(rope.theta);
    const float factor = static_cast<float>(rope.factor);
    const float low = static_cast<float>(rope.low_freq_factor);
    const double context = static_cast<double>(rope.original_max_positions);
    const float low_wavelength = static_cast<float>(context / rope.low_freq_factor);
    const float high_wavelength = static_cast<float>(context / rope.high_freq_factor);
    for (size_t i = 0; i < frequencies.size(); ++i) {
        const float exponent = static_cast<float>(2 * i) / static_cast<float>(dims);
        // Through double: the correctly rounded float power.
        const float power =
            static_cast<float>(std::pow(static_cast<double>(theta), static_cast<double>(exponent)));
        float frequency = 1.0F / power;
        if (rope.kind == RopeKind::linear) {
            frequency /= factor;
        } else if (rope.kind == RopeKind::llama3) {
            // Long waves are slowed by the factor, short ones left alone, and those between are
            // blended.
            const float wavelength = (1.0F / frequency) * static_cast<float>(2 * M_PI);
            if (wavelength > low_wavelength) {
                frequency /= factor;
            } else if (!(wavelength < high_wavelength)) {
                const float turns = (1.0F / wavelength) * static_cast<float>(context);
                const float smooth = (turns - low) / static_cast<float>(rope.high_freq_factor -
                                                                        rope.low_freq_factor);
                frequency = (1.0F - smooth) * frequency / factor + smooth * frequency;
            }
        }
        frequencies[i] = frequency;
    }
    return frequencies;
}

} // namespace batchllm
