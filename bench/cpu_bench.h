// What the parts of bench/cpu share: its options, how a call is timed, and a random model.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "backend/cpu/bfloat16.h"
#include "clock.h"
#include "model/model.h"

namespace batchllm::cpu {

struct CpuBenchOptions {
    bool linear = false, attention = false, steps = false, only_sharing = false;
    int32_t threads = 0;
    DType type = DType::f32;
    int32_t groups = 4;
};

// Seconds of one call: the shortest of those made within a fifth of a second, after one to warm up.
// The shortest, because whatever else runs on the machine can only lengthen a call.
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

// A Llama of about 100M parameters with random weights; owns their memory.
struct RandomModel {
    Model model;
    std::vector<std::vector<uint16_t>> weights;
    std::mt19937_64 random{1};

    Tensor tensor(int64_t rows, int64_t columns, float scale) {
        std::vector<uint16_t> &data = weights.emplace_back(static_cast<size_t>(rows * columns));
        std::uniform_real_distribution<float> uniform(-scale, scale);
        for (uint16_t &x : data) x = float_to_bfloat16(uniform(random));
        return {DType::bf16, reinterpret_cast<const std::byte *>(data.data()), rows, columns};
    }
    Tensor ones(int64_t n) {
        std::vector<uint16_t> &data = weights.emplace_back(static_cast<size_t>(n));
        for (uint16_t &x : data) x = float_to_bfloat16(1);
        return {DType::bf16, reinterpret_cast<const std::byte *>(data.data()), n, 1};
    }
    RandomModel() {
        ModelConfig &c = model.config;
        c.vocabulary = 32000;
        c.hidden = 768;
        c.intermediate = 2048;
        c.layers = 12;
        c.heads = 12;
        c.kv_heads = 4;
        c.head_dim = 64;
        c.max_positions = 8192;
        const float scale = 0.05f;
        model.embedding = tensor(c.vocabulary, c.hidden, 1);
        for (int32_t l = 0; l < c.layers; ++l) {
            LayerWeights layer;
            layer.input_norm = ones(c.hidden);
            layer.q = tensor(c.heads * c.head_dim, c.hidden, scale);
            layer.k = tensor(c.kv_heads * c.head_dim, c.hidden, scale);
            layer.v = tensor(c.kv_heads * c.head_dim, c.hidden, scale);
            layer.o = tensor(c.hidden, c.heads * c.head_dim, scale);
            layer.post_attention_norm = ones(c.hidden);
            layer.gate = tensor(c.intermediate, c.hidden, scale);
            layer.up = tensor(c.intermediate, c.hidden, scale);
            layer.down = tensor(c.hidden, c.intermediate, scale);
            model.layers.push_back(layer);
        }
        model.final_norm = ones(c.hidden);
        model.lm_head = tensor(c.vocabulary, c.hidden, scale);
    }
};

// The parts, each in the file of its name; cpu.cc says what they print.
void bench_linear(const RandomModel &random_model, const CpuBenchOptions &options);
void bench_attention(const RandomModel &random_model, const CpuBenchOptions &options);
void bench_steps(const RandomModel &random_model, const CpuBenchOptions &options);

} // namespace batchllm::cpu
