// Random sequences through a layer's short convolution, in steps that cut them anywhere, and the convolution of each in
// float64: what the test on the device and the one of its threads on the host share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "backend/backend.h"

namespace batchllm::cuda {

struct ConvolutionShape {
    int32_t channels, width;
    bool biased;

    int64_t stride() const { return (3 * int64_t{channels} + 15) / 16 * 16; }
};

// A layer's vectors, as ShortConvolutionArguments has them; biases may be empty.
struct ConvolutionVectors {
    std::vector<float> filter, filter_bias, input_bias;
};

// What continues another one from its end, or nothing.
struct ConvolutionSequence {
    int32_t parent = -1;
    int32_t start = 0, length = 0, slot = 0;
    int32_t done = 0;          // tokens that steps have had
    std::vector<float> inputs; // [length, stride]
    std::vector<double> seen;  // [width - 1, channels] p of the last tokens
    std::vector<double> wanted;
    std::vector<float> got; // both [length, channels]
};

template <typename Random> int32_t between(Random &random, int32_t low, int32_t high) {
    return low + static_cast<int32_t>(random() % static_cast<uint64_t>(high - low + 1));
}

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

// draw: `count` values as the element type has them.
template <typename Random> std::vector<ConvolutionSequence>
make_sequences(Random &random, const ConvolutionShape &shape, const ConvolutionVectors &vectors,
               int32_t count, int32_t longest,
               const std::function<std::vector<float>(int64_t count)> &draw) {
    std::vector<int32_t> slots;
    for (int32_t i = 0; i < count; ++i) slots.push_back(i);
    std::shuffle(slots.begin(), slots.end(), random);
    std::vector<ConvolutionSequence> all;
    for (int32_t i = 0; i < count; ++i) {
        ConvolutionSequence s;
        s.parent = i == 0 ? -1 : between(random, -1, i - 1);
        s.length = between(random, 1, between(random, 0, 2) == 0 ? 4 : longest);
        s.slot = slots[static_cast<size_t>(i)];
        s.inputs = draw(s.length * shape.stride());
        s.seen.assign(static_cast<size_t>((shape.width - 1) * shape.channels), 0);
        if (s.parent >= 0) {
            const ConvolutionSequence &from = all[static_cast<size_t>(s.parent)];
            s.start = from.start + from.length;
            s.seen = from.seen;
        }
        add_reference(shape, vectors, &s);
        all.push_back(std::move(s));
    }
    return all;
}

// [tokens of the batch, stride] -> [tokens, channels]
using RunStep =
    std::function<std::vector<float>(const TokenBatch &batch, const std::vector<float> &projected)>;

// A step of some of what is left, at most `most` tokens a sequence; a sequence may begin in the step that ends its
// parent. False: nothing was left.
template <typename Random> bool run_step(Random &random, const ConvolutionShape &shape,
                                         int32_t most, std::vector<ConvolutionSequence> *sequences,
                                         const RunStep &run) {
    TokenBatch batch;
    std::vector<float> projected;
    std::vector<int32_t> counts;
    int32_t tokens = 0;
    bool left = false;
    for (ConvolutionSequence &s : *sequences) {
        left = left || s.done < s.length;
        int32_t count = 0;
        const auto parent = static_cast<size_t>(std::max(s.parent, 0));
        const bool can = s.parent < 0 || (*sequences)[parent].done == (*sequences)[parent].length;
        if (can && between(random, 0, 3) != 0) {
            count = between(random, 1, between(random, 0, 1) == 0 ? 1 : most);
            count = std::min(count, s.length - s.done);
        }
        batch.nodes.push_back({s.parent, s.start, s.done + count, tokens, count, false, s.slot});
        const auto begin = s.inputs.begin() + shape.stride() * s.done;
        projected.insert(projected.end(), begin, begin + shape.stride() * count);
        counts.push_back(count);
        s.done += count;
        tokens += count;
    }
    if (tokens == 0) return left;
    batch.tokens.resize(static_cast<size_t>(tokens));
    const std::vector<float> results = run(batch, projected);
    auto at = results.begin();
    for (size_t i = 0; i < counts.size(); ++i) {
        std::vector<float> &got = (*sequences)[i].got;
        const int64_t size = int64_t{counts[i]} * shape.channels;
        got.insert(got.end(), at, at + size);
        at += size;
    }
    return true;
}

} // namespace batchllm::cuda
