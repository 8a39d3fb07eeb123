// Random sequences through a layer's short convolution, and the convolution of each in float64.
// Shared by the test on the device and the one that runs its threads on the host.
#pragma once

#include <cstdint>
#include <vector>

#include "state_steps.h"

namespace batchllm::cuda {

struct ConvolutionShape {
    int32_t channels, width;
    bool biased;

    int64_t stride() const { return (3 * int64_t{channels} + 15) / 16 * 16; }
};

// A layer's vectors, as in ShortConvolutionArguments; biases may be empty.
struct ConvolutionVectors {
    std::vector<float> filter, filter_bias, input_bias;
};

struct ConvolutionSequence : StateSequence {
    std::vector<double> seen; // [width - 1, channels] p of the last tokens
};

inline void add_reference(const ConvolutionShape &shape, const ConvolutionVectors &v,
                          ConvolutionSequence *s) {
    const auto channels = static_cast<size_t>(shape.channels);
    const auto width = static_cast<size_t>(shape.width);
    const auto bias = [](const std::vector<float> &of, size_t at) {
        return of.empty() ? 0.0 : static_cast<double>(of[at]);
    };
    for (int32_t t = 0; t < s->length; ++t) {
        const float *row = s->inputs.data() + t * shape.stride();
        const auto input = [&](size_t part, size_t c) {
            return static_cast<double>(row[part * channels + c]) +
                   bias(v.input_bias, part * channels + c);
        };
        for (size_t c = 0; c < channels; ++c) s->seen.push_back(input(0, c) * input(2, c));
        for (size_t c = 0; c < channels; ++c) {
            double sum = bias(v.filter_bias, c);
            for (size_t w = 0; w < width; ++w) {
                sum += static_cast<double>(v.filter[w * channels + c]) * s->seen[w * channels + c];
            }
            s->wanted.push_back(input(1, c) * sum);
        }
        s->seen.erase(s->seen.begin(), s->seen.begin() + shape.channels);
    }
}

// draw(count): values that the element type represents exactly.
template <typename Random, typename Draw>
std::vector<ConvolutionSequence> make_sequences(Random &random, const ConvolutionShape &shape,
                                                const ConvolutionVectors &vectors, int32_t count,
                                                int32_t longest, const Draw &draw) {
    return random_sequences<ConvolutionSequence>(
        random, count, longest, [&](ConvolutionSequence *s, const ConvolutionSequence *from) {
            s->inputs = draw(s->length * shape.stride());
            s->seen.assign(static_cast<size_t>((shape.width - 1) * shape.channels), 0);
            if (from != nullptr) s->seen = from->seen;
            add_reference(shape, vectors, s);
        });
}

} // namespace batchllm::cuda
