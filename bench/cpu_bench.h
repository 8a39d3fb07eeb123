// Shared by the parts of bench/cpu: its options, how a call is timed, and a random model.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "backend/cpu/kernels.h"
#include "base/narrow_floats.h"
#include "clock.h"
#include "model/model.h"

namespace batchllm::cpu {

struct CpuBenchOptions {
    bool linear = false, attention = false, steps = false, only_sharing = false;
    int32_t threads = 0;
    DType type = DType::f32;
    int32_t groups = 4;
    bool reproducible = false;
    bool convolutions = false;     // layers of LFM2-1.2B
    const char *kernels = nullptr; // a table's name; null: the best

    const Kernels &table() const {
        const Isa isa = kernels == nullptr ? best_isa(type) : isa_from_name(kernels).value();
        const Kernels *found = isa_runs_here(isa) ? kernels_for(isa, type) : nullptr;
        if (found == nullptr) {
            std::fprintf(stderr, "no kernels %s of %s here\n", isa_name(isa), dtype_name(type));
            std::exit(1);
        }
        return *found;
    }
};

// Seconds of one call: the shortest of those made within a fifth of a second, after one to warm up.
// The shortest, because other programs on the machine can only lengthen a call.
template <typename F> double shortest_seconds(F call) {
    call();
    double shortest = 1e9;
    const auto start = Clock::now();
    for (int calls = 0; calls < 5 || seconds_since(start) < 0.2; ++calls) {
        const auto before = Clock::now();
        call();
        shortest = std::min(shortest, seconds_since(before));
    }
    return shortest;
}

inline void check(const Status &status) {
    if (status.ok()) return;
    std::fprintf(stderr, "%s\n", status.message().c_str());
    std::exit(1);
}

// A Llama of about 100M parameters with random weights, or three layers of LFM2-1.2B's shapes, two of them with a
// short convolution; owns their memory.
struct RandomModel {
    Model model;
    std::vector<std::vector<uint16_t>> weights;
    std::mt19937_64 random{1};

    Tensor tensor(int64_t rows, int64_t columns, float scale) {
        std::vector<uint16_t> &data = weights.emplace_back(static_cast<size_t>(rows * columns));
        std::uniform_real_distribution<float> uniform(-scale, scale);
        for (uint16_t &x : data) x = float_to_bfloat16(uniform(random));
        return {
            DType::bf16, reinterpret_cast<const std::byte *>(data.data()), rows, columns, "", 0, 0};
    }
    Tensor ones(int64_t n) {
        std::vector<uint16_t> &data = weights.emplace_back(static_cast<size_t>(n));
        for (uint16_t &x : data) x = float_to_bfloat16(1);
        return {DType::bf16, reinterpret_cast<const std::byte *>(data.data()), n, 1, "", 0, 0};
    }
    explicit RandomModel(bool convolutions = false) {
        const int32_t hidden = convolutions ? 2048 : 768, intermediate = convolutions ? 8192 : 2048;
        const float scale = convolutions ? 0.03f : 0.05f;
        model.vocabulary = convolutions ? 4096 : 32000;
        model.hidden = hidden;
        model.max_positions = 8192;
        model.dtype = DType::bf16;
        model.embedding = tensor(model.vocabulary, hidden, 1);
        const auto norm = [&] { return Norm{NormKind::rms, ones(hidden), {}, 0, 1e-6f}; };
        const auto attend = [&](Attention *attention) {
            attention->heads = hidden / 64;
            attention->kv_heads = convolutions ? 8 : 4;
            attention->head_dim = 64;
            attention->scale = 0.125f;
            attention->rope = 0;
            attention->q.values = tensor(attention->q_size(), hidden, scale);
            attention->k.values = tensor(attention->kv_size(), hidden, scale);
            attention->v.values = tensor(attention->kv_size(), hidden, scale);
            attention->o.values = tensor(hidden, attention->q_size(), scale);
        };
        const auto convolve = [&](ShortConvolution *convolution) {
            convolution->width = 3;
            for (Weight *w : {&convolution->b, &convolution->c, &convolution->x, &convolution->o}) {
                w->values = tensor(hidden, hidden, scale);
            }
            convolution->filter.values = tensor(hidden, convolution->width, 0.5f);
        };
        for (int32_t l = 0; l < (convolutions ? 3 : 12); ++l) {
            Layer layer;
            layer.before_attention = norm();
            if (convolutions && l > 0) {
                convolve(&layer.mixer.emplace<ShortConvolution>());
            } else {
                attend(&layer.mixer.emplace<Attention>());
            }
            layer.before_feed_forward = norm();
            FeedForward &feed_forward = layer.feed.emplace<FeedForward>();
            feed_forward.width = intermediate;
            feed_forward.gate.values = tensor(intermediate, hidden, scale);
            feed_forward.up.values = tensor(intermediate, hidden, scale);
            feed_forward.down.values = tensor(hidden, intermediate, scale);
            model.layers.push_back(layer);
        }
        model.ropes = {{rope_frequencies({}, 64), 1, false}};
        model.final_norm = norm();
        model.head.values = tensor(model.vocabulary, hidden, scale);
        place_keys_and_values(&model);
    }
};

// The parts, each in its own file; cpu.cc says what they print.
void bench_linear(const RandomModel &random_model, const CpuBenchOptions &options);
void bench_attention(const RandomModel &random_model, const CpuBenchOptions &options);
void bench_steps(const RandomModel &random_model, const CpuBenchOptions &options);

} // namespace batchllm::cpu
