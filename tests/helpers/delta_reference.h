// The gated delta rule in float64, token by token, and random sequences with its results, for tests
// of its kernels. Includes cmocka: include this last.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "model/model.h"
#include "recurrent/delta.h"

#include "cuda_arrays.h"

#include "state_steps.h"

namespace batchllm::cuda {

struct DeltaShape {
    int32_t key_heads, value_heads, key_dim, value_dim, width;
};

inline DeltaNet net_of(const DeltaShape &shape) {
    DeltaNet net;
    net.key_heads = shape.key_heads;
    net.value_heads = shape.value_heads;
    net.key_dim = shape.key_dim;
    net.value_dim = shape.value_dim;
    net.width = shape.width;
    return net;
}

// A layer's vectors.
struct DeltaVectors {
    std::vector<float> convolution; // [channels, kRing]
    std::vector<float> decay, step; // [value_heads]
    std::vector<float> norm;        // [value_dim]
};

inline DeltaVectors make_vectors(Random &random, const LinearAttention &net) {
    DeltaVectors made;
    made.convolution = normal(random, net.channels() * kRing, DType::f32, 0.6F);
    for (int64_t c = 0; c < net.channels(); ++c) {
        for (int64_t w = 0; w < kRing - net.width; ++w) {
            made.convolution[static_cast<size_t>(c * kRing + w)] = 0;
        }
    }
    // Decays per token from nearly none to nearly all.
    for (int32_t h = 0; h < net.value_heads; ++h) {
        made.decay.push_back(static_cast<float>(draw(random, -60, 25)) / 10);
    }
    made.step = normal(random, net.value_heads, DType::f32);
    made.norm = normal(random, net.value_dim, DType::f32);
    return made;
}

struct DeltaSequence : StateSequence {
    std::vector<std::vector<double>> state;      // [value_heads][key_dim * value_dim]
    std::vector<std::vector<float>> last_inputs; // [kRing - 1][channels]
};

inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// One token and value head; updates the state.
inline void reference_head(const LinearAttention &net, const DeltaVectors &v,
                           const std::vector<double> &mixed, const float *row, int64_t head,
                           std::vector<double> *state, std::vector<double> *results) {
    const int64_t key_head = head / (net.value_heads / net.key_heads);
    const auto K = static_cast<size_t>(net.key_dim), V = static_cast<size_t>(net.value_dim);
    const double *query = mixed.data() + key_head * net.key_dim, *key = query + net.keys_size();
    const double *value = mixed.data() + 2 * net.keys_size() + head * net.value_dim;
    const float *gate = row + net.channels() + head * net.value_dim;
    const float *b = row + net.channels() + net.values_size() + head;
    const double x = double(b[net.value_heads]) + double(v.step[static_cast<size_t>(head)]);
    const double decay =
        std::exp(-std::exp(double(v.decay[static_cast<size_t>(head)])) * std::log1p(std::exp(x)));
    std::vector<double> result(V);
    double squares = 0;
    for (size_t c = 0; c < V; ++c) {
        double known = 0;
        for (size_t k = 0; k < K; ++k) known += key[k] * decay * (*state)[k * V + c];
        for (size_t k = 0; k < K; ++k) {
            double &s = (*state)[k * V + c];
            s = decay * s + sigmoid(double(b[0])) * key[k] * (value[c] - known);
            result[c] += query[k] * s;
        }
        squares += result[c] * result[c] / static_cast<double>(V);
    }
    for (size_t c = 0; c < V; ++c) {
        const double z = double(gate[c]);
        results->push_back(result[c] / std::sqrt(squares + 1e-6) * double(v.norm[c]) * z *
                           sigmoid(z));
    }
}

inline void compute_reference(const LinearAttention &net, const DeltaVectors &v, int64_t stride,
                              DeltaSequence *s) {
    for (int32_t t = 0; t < s->length; ++t) {
        const float *row = s->inputs.data() + t * stride;
        std::vector<double> mixed(static_cast<size_t>(net.channels()));
        for (size_t c = 0; c < mixed.size(); ++c) {
            double sum = double(row[c]) * double(v.convolution[c * kRing + kRing - 1]);
            for (size_t w = 0; w + 1 < kRing; ++w) {
                sum += double(s->last_inputs[w][c]) * double(v.convolution[c * kRing + w]);
            }
            mixed[c] = sum * sigmoid(sum);
        }
        for (int64_t h = 0; h < 2 * net.key_heads; ++h) {
            double *head = mixed.data() + h * net.key_dim, squares = 1e-6;
            for (int64_t i = 0; i < net.key_dim; ++i) squares += head[i] * head[i];
            const double length = std::sqrt(squares * (h < net.key_heads ? net.key_dim : 1));
            for (int64_t i = 0; i < net.key_dim; ++i) head[i] /= length;
        }
        for (int64_t h = 0; h < net.value_heads; ++h) {
            reference_head(net, v, mixed, row, h, &s->state[static_cast<size_t>(h)], &s->wanted);
        }
        s->last_inputs.erase(s->last_inputs.begin());
        s->last_inputs.emplace_back(row, row + net.channels());
    }
}

// from: the sequence that it continues, or null.
inline void fill_sequence(Random &random, const LinearAttention &net, const DeltaVectors &v,
                          int64_t stride, DType type, const DeltaSequence *from, DeltaSequence *s) {
    s->inputs = normal(random, s->length * stride, type);
    for (int32_t t = 0; t < s->length; ++t) { // including gates near 0 and 1
        const int64_t gates = t * stride + net.channels() + net.values_size();
        for (int64_t g = gates; g < gates + 2 * net.value_heads; ++g) {
            float &x = s->inputs[static_cast<size_t>(g)];
            x = rounded(4 * x, type);
        }
    }
    s->state.assign(static_cast<size_t>(net.value_heads),
                    std::vector<double>(static_cast<size_t>(net.key_dim * net.value_dim)));
    s->last_inputs.assign(kRing - 1, std::vector<float>(static_cast<size_t>(net.channels())));
    if (from != nullptr) {
        s->state = from->state;
        s->last_inputs = from->last_inputs;
    }
    compute_reference(net, v, stride, s);
}

// Requests that continue prefixes, which may continue others.
inline std::vector<DeltaSequence> make_sequences(Random &random, const LinearAttention &net,
                                                 const DeltaVectors &v, int64_t stride, DType type,
                                                 int32_t count, int32_t longest) {
    return random_sequences<DeltaSequence>(random, count, longest,
                                           [&](DeltaSequence *s, const DeltaSequence *from) {
                                               fill_sequence(random, net, v, stride, type, from, s);
                                           });
}

} // namespace batchllm::cuda
