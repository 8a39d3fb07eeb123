// Random sequences through a layer with a state, in steps that cut them anywhere: shared by tests
// of such layers on the device and of kernels' threads on the host. Includes cmocka: include this
// last.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "testing.h"

namespace batchllm::cuda {

template <typename Random> int32_t between(Random &random, int32_t low, int32_t high) {
    return low + static_cast<int32_t>(random() % static_cast<uint64_t>(high - low + 1));
}

// A sequence that continues another one from its end, or none.
struct StateSequence {
    int32_t parent = -1;
    int32_t start = 0, length = 0, slot = 0;
    int32_t done = 0;           // tokens that steps have computed
    std::vector<float> inputs;  // [length, stride]
    std::vector<double> wanted; // [length, values]
    std::vector<float> got;     // the same, for the tokens that are done
};

// Makes sequences, a third of them with 1 to 4 tokens. fill(&sequence, parent) makes inputs and
// wanted results; parent may be null.
template <typename Sequence, typename Random, typename Fill> std::vector<Sequence>
random_sequences(Random &random, int32_t count, int32_t longest, const Fill &fill) {
    std::vector<int32_t> slots;
    for (int32_t i = 0; i < count; ++i) slots.push_back(i);
    std::shuffle(slots.begin(), slots.end(), random);
    std::vector<Sequence> all;
    for (int32_t i = 0; i < count; ++i) {
        Sequence s;
        s.parent = i == 0 ? -1 : between(random, -1, i - 1);
        s.length = between(random, 1, between(random, 0, 2) == 0 ? 4 : longest);
        s.slot = slots[static_cast<size_t>(i)];
        const Sequence *from = s.parent < 0 ? nullptr : &all[static_cast<size_t>(s.parent)];
        if (from != nullptr) s.start = from->start + from->length;
        fill(&s, from);
        all.push_back(std::move(s));
    }
    return all;
}

// A step, and its inputs in a layer: node i of the batch is sequence i.
struct StateStep {
    TokenBatch batch;
    std::vector<float> projected; // [tokens, stride]

    // Adds the sequence's next `count` tokens, or none.
    void add(int32_t count, int64_t stride, StateSequence *s) {
        const auto tokens = static_cast<int32_t>(batch.tokens.size());
        batch.nodes.push_back(
            {s->parent, s->start, s->done + count, tokens, count, false, s->slot});
        batch.tokens.resize(batch.tokens.size() + static_cast<size_t>(count));
        const auto begin = s->inputs.begin() + stride * s->done;
        projected.insert(projected.end(), begin, begin + stride * count);
        s->done += count;
    }

    // results: [tokens, values]
    template <typename Sequence> void give(const std::vector<float> &results, int64_t values,
                                           std::vector<Sequence> *sequences) const {
        for (size_t i = 0; i < batch.nodes.size(); ++i) {
            const ContextNode &node = batch.nodes[i];
            const auto at = results.begin() + node.token_begin * values;
            std::vector<float> &got = (*sequences)[i].got;
            got.insert(got.end(), at, at + node.token_count * values);
        }
    }
};

// Runs a step with some of what is left, at most `most` tokens per sequence; a sequence may begin
// in the step that ends its parent. run(step) returns the results. False: nothing was left.
template <typename Random, typename Sequence, typename Run>
bool run_step(Random &random, int64_t stride, int64_t values, int32_t most,
              std::vector<Sequence> *sequences, const Run &run) {
    StateStep step;
    bool left = false;
    for (Sequence &s : *sequences) {
        left = left || s.done < s.length;
        int32_t count = 0;
        const Sequence *from =
            s.parent < 0 ? nullptr : &(*sequences)[static_cast<size_t>(s.parent)];
        if ((from == nullptr || from->done == from->length) && between(random, 0, 3) != 0) {
            count = between(random, 1, between(random, 0, 1) == 0 ? 1 : most);
            count = std::min(count, s.length - s.done);
        }
        step.add(count, stride, &s);
    }
    if (step.batch.tokens.empty()) return left;
    step.give(run(step), values, sequences);
    return true;
}

// Checks || got - wanted || / || wanted || for each sequence separately, so that long ones do not
// hide a short wrong one.
template <typename Sequence>
void assert_each_close(const std::vector<Sequence> &sequences, double limit, const char *what) {
    double worst = 0;
    for (size_t i = 0; i < sequences.size(); ++i) {
        const Sequence &s = sequences[i];
        assert_int_equal(s.got.size(), s.wanted.size());
        double wrong = 0, all = 1e-30;
        for (size_t k = 0; k < s.got.size(); ++k) {
            wrong += std::pow(static_cast<double>(s.got[k]) - s.wanted[k], 2);
            all += s.wanted[k] * s.wanted[k];
        }
        const double error = std::sqrt(wrong / all);
        if (!(error <= limit)) { // also true for NaN
            fail_msg("%s: relative error %g (limit %g) in sequence %zu, of %d tokens from position "
                     "%d on",
                     what, error, limit, i, s.length, s.start);
        }
        worst = std::max(worst, error);
    }
    print_message("%s: relative error at most %.2g\n", what, worst);
}

} // namespace batchllm::cuda
