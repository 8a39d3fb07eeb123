// Computes a model's description on the host in float64, one row at a time and without any cache,
// as a reference for backends. Weights must be f32.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "backend/kv_scales.h"
#include "base/visit.h"
#include "model/model.h"

namespace batchllm::reference {

using Row = std::vector<double>;
using Rows = std::vector<Row>; // [tokens] of one row of a job, from position 0 on

inline double at(const Tensor &tensor, int64_t i) {
    return double(reinterpret_cast<const float *>(tensor.data)[i]);
}

inline double or_else(const Tensor &tensor, int64_t i, double otherwise) {
    return tensor ? at(tensor, i) : otherwise;
}

// x[begin, begin + length)
// Uses the norm's weights from first_weight on.
inline void normalise(const Norm &norm, int64_t begin, int64_t length, Row *x,
                      int64_t first_weight = 0) {
    if (!norm) return;
    const auto element = [&](int64_t i) -> double & {
        return (*x)[static_cast<size_t>(begin + i)];
    };
    double mean = 0, squares = 0;
    for (int64_t i = 0; i < length && norm.kind == NormKind::layer; ++i) {
        mean += element(i) / static_cast<double>(length);
    }
    for (int64_t i = 0; i < length; ++i) {
        element(i) -= mean;
        squares += element(i) * element(i);
    }
    const double scale =
        1 / std::sqrt(squares / static_cast<double>(length) + double(norm.epsilon));
    for (int64_t i = 0; i < length; ++i) {
        const double weight =
            norm.weight ? at(norm.weight, first_weight + i) + double(norm.offset) : 1;
        element(i) = element(i) * scale * weight + or_else(norm.bias, i, 0);
    }
}

inline Rows normalised(const Norm &norm, Rows x) {
    for (Row &row : x) normalise(norm, 0, static_cast<int64_t>(row.size()), &row);
    return x;
}

inline Rows product(const Weight &w, const Rows &x) {
    Rows out;
    for (const Row &row : x) {
        Row y(static_cast<size_t>(w.rows()));
        for (int64_t r = 0; r < w.rows(); ++r) {
            double sum = 0;
            for (int64_t c = 0; c < w.columns(); ++c) {
                sum += at(w.values, r * w.columns() + c) * row[static_cast<size_t>(c)];
            }
            y[static_cast<size_t>(r)] =
                sum * double(w.values.factor) + or_else(w.bias, r, 0) * double(w.bias.factor);
        }
        out.push_back(std::move(y));
    }
    return out;
}

// Rotates one head at a position.
inline void turn(const Rope &rope, size_t position, double *head) {
    const auto half = static_cast<int64_t>(rope.frequencies.size());
    for (int64_t i = 0; i < half; ++i) {
        // In f32, as in every implementation: the angle is part of the definition.
        const double angle =
            double(static_cast<float>(position) * rope.frequencies[static_cast<size_t>(i)]);
        const double c = double(rope.scale) * std::cos(angle),
                     s = double(rope.scale) * std::sin(angle);
        double &a = head[rope.pairs ? 2 * i : i], &b = head[rope.pairs ? 2 * i + 1 : i + half];
        const double first = a * c - b * s;
        b = b * c + a * s;
        a = first;
    }
}

// Queries or keys: normalised, then rotated.
inline void place(const Model &model, const Attention &a, const Norm &norm, int64_t heads,
                  Rows *x) {
    for (size_t t = 0; t < x->size(); ++t) {
        Row &row = (*x)[t];
        if (a.norm_whole) normalise(norm, 0, static_cast<int64_t>(row.size()), &row);
        for (int64_t h = 0; h < heads; ++h) {
            const bool alone = !a.norm_whole;
            if (alone && !a.norm_turned) normalise(norm, h * a.head_dim, a.head_dim, &row);
            if (a.rope >= 0) {
                turn(model.ropes[static_cast<size_t>(a.rope)], t, row.data() + h * a.head_dim);
            }
            if (alone && a.norm_turned) normalise(norm, h * a.head_dim, a.head_dim, &row);
        }
    }
}

// Appends the result of one query head to out.
inline void attend(const Attention &a, const Rows &q, const Rows &k, const Rows &v, size_t t,
                   int64_t head, Row *out) {
    const int64_t dim = a.head_dim, kv = head / a.gqa_ratio() * dim;
    const auto window = static_cast<size_t>(a.window);
    const size_t first = a.chunked                      ? t / window * window
                         : window > 0 && t + 1 > window ? t + 1 - window
                                                        : 0;
    std::vector<double> scores;
    double largest = a.sinks ? at(a.sinks, head) : -std::numeric_limits<double>::infinity();
    for (size_t j = first; j <= t; ++j) {
        double score = 0;
        for (int64_t e = 0; e < dim; ++e) {
            score += q[t][static_cast<size_t>(head * dim + e)] * k[j][static_cast<size_t>(kv + e)];
        }
        score *= double(a.scale);
        if (a.softcap != 0) score = double(a.softcap) * std::tanh(score / double(a.softcap));
        scores.push_back(score);
        largest = std::max(largest, score);
    }
    double total = a.sinks ? std::exp(at(a.sinks, head) - largest) : 0;
    for (double &score : scores) {
        score = std::exp(score - largest);
        total += score;
    }
    for (int64_t e = 0; e < dim; ++e) {
        double sum = 0;
        for (size_t j = first; j <= t; ++j) {
            sum += scores[j - first] * v[j][static_cast<size_t>(kv + e)];
        }
        out->push_back(sum / total);
    }
}

inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// Splits the output of a gated attention's product: leaves only the queries in q, and returns the
// gates.
inline Rows take_gates(const Attention &a, Rows *q) {
    Rows gates(q->size());
    for (size_t t = 0; t < q->size() && a.gated; ++t) {
        Row queries;
        for (size_t i = 0; i < (*q)[t].size(); ++i) {
            const bool gate = i / static_cast<size_t>(a.head_dim) % 2 == 1;
            (gate ? gates[t] : queries).push_back((*q)[t][i]);
        }
        (*q)[t] = std::move(queries);
    }
    return gates;
}

// The keys and values of one layer.
struct KeysValues {
    Rows k, v;
};

// The nearest e4m3 number, ties to even; saturates.
inline double nearest_e4m3(double x) {
    const double size = std::min(std::fabs(x), 448.0);
    const double step = std::ldexp(1.0, std::max(size > 0 ? std::ilogb(size) : -6, -6) - 3);
    return std::copysign(std::nearbyint(size / step) * step, x);
}

// scales: [heads]
inline void store_in_e4m3(const std::vector<float> &scales, int64_t head_dim, Rows *x) {
    for (Row &row : *x) {
        for (size_t i = 0; i < row.size(); ++i) {
            const auto scale = double(scales[i / static_cast<size_t>(head_dim)]);
            row[i] = scale * nearest_e4m3(row[i] / scale);
        }
    }
}

inline void scale_by_position(const Attention &a, Rows *q) {
    for (size_t t = 0; t < q->size() && a.long_scale != 0; ++t) {
        const double periods = std::floor(static_cast<double>(t + a.long_shift) / a.long_period);
        for (double &value : (*q)[t]) value *= 1 + double(a.long_scale) * std::log(1 + periods);
    }
}

// In the plain form: each head's keys and values are made of the latents.
inline Rows latent_attention(const Model &model, const Attention &a, const Rows &x,
                             const KvScales *scales) {
    const Latent &latent = a.latent;
    Rows q = product(a.q, latent.q_down ? normalised(latent.q_norm, product(latent.q_down, x)) : x);
    scale_by_position(a, &q);
    Rows kept = product(latent.down, x), of_down;
    const auto turn_part = [&](size_t t, double *part) {
        if (a.rope >= 0) turn(model.ropes[static_cast<size_t>(a.rope)], t, part);
    };
    for (size_t t = 0; t < x.size(); ++t) {
        normalise(latent.norm, 0, latent.rank, &kept[t]);
        turn_part(t, kept[t].data() + latent.rank);
        for (int64_t h = 0; h < a.heads; ++h) {
            turn_part(t, q[t].data() + h * latent.query_dim() + latent.plain);
        }
    }
    if (scales != nullptr) store_in_e4m3(scales->k, a.head_dim, &kept);
    for (const Row &row : kept) of_down.emplace_back(row.begin(), row.begin() + latent.rank);
    const Rows up = product(latent.up, of_down);
    Rows out(x.size());
    for (size_t t = 0; t < x.size(); ++t) {
        for (int64_t h = 0; h < a.heads; ++h) {
            const double *query = q[t].data() + h * latent.query_dim();
            const auto of_head = [&](size_t j) {
                return up[j].data() + h * (latent.plain + latent.value_dim);
            };
            std::vector<double> scores;
            double total = 0;
            for (size_t j = 0; j <= t; ++j) {
                double score = 0;
                for (int64_t e = 0; e < latent.plain; ++e) score += query[e] * of_head(j)[e];
                for (int64_t e = 0; e < latent.turned; ++e) {
                    score +=
                        query[latent.plain + e] * kept[j][static_cast<size_t>(latent.rank + e)];
                }
                scores.push_back(score * a.scale);
            }
            const double most = *std::max_element(scores.begin(), scores.end());
            for (double &score : scores) total += score = std::exp(score - most);
            for (int64_t e = 0; e < latent.value_dim; ++e) {
                double sum = 0;
                for (size_t j = 0; j <= t; ++j) sum += scores[j] * of_head(j)[latent.plain + e];
                out[t].push_back(sum / total);
            }
        }
    }
    return product(a.o, out);
}

// kept: [layers] those of earlier layers, and then of this one, if it has its own.
// scales: for keys and values in e4m3, or null.
inline Rows attention(const Model &model, size_t layer, const Rows &x, const KvScales *scales,
                      std::vector<KeysValues> *kept) {
    const Attention &a = *model.layers[layer].attention();
    if (a.latent) return latent_attention(model, a, x, scales);
    Rows q = product(a.q, x);
    const Rows gates = a.gate ? product(a.gate, x) : take_gates(a, &q);
    place(model, a, a.q_norm, a.heads, &q);
    if (a.kv_layer < 0) {
        KeysValues own{product(a.k, x), product(a.v, x)};
        place(model, a, a.k_norm, a.kv_heads, &own.k);
        for (Row &row : own.v) {
            for (int64_t h = 0; h < a.kv_heads; ++h) {
                normalise(a.v_norm, h * a.head_dim, a.head_dim, &row);
            }
        }
        if (scales != nullptr) {
            store_in_e4m3(scales->k, a.head_dim, &own.k);
            store_in_e4m3(scales->v, a.head_dim, &own.v);
        }
        (*kept)[layer] = std::move(own);
    }
    const auto &[k, v] = (*kept)[a.kv_layer < 0 ? layer : static_cast<size_t>(a.kv_layer)];
    scale_by_position(a, &q);
    Rows out(x.size());
    for (size_t t = 0; t < x.size(); ++t) {
        for (int64_t head = 0; head < a.heads; ++head) attend(a, q, k, v, t, head, &out[t]);
        for (size_t i = 0; i < out[t].size() && a.gated; ++i) out[t][i] *= sigmoid(gates[t][i]);
    }
    return product(a.o, out);
}

inline double activated(Activation kind, double x) {
    switch (kind) {
    case Activation::silu:
        return x / (1 + std::exp(-x));
    case Activation::gelu:
        return x / 2 * (1 + std::erf(x / std::sqrt(2.0)));
    case Activation::gelu_tanh:
        return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::relu_squared:
        return std::max(x, 0.0) * std::max(x, 0.0);
    case Activation::clamped_swiglu: // applied to gate and up together
    case Activation::xielu:          // has numbers of its own
        break;
    }
    return 0;
}

inline double gated(Activation kind, double gate, double up) {
    if (kind != Activation::clamped_swiglu) return activated(kind, gate) * up;
    const double g = std::min(gate, 7.0), u = std::clamp(up, -7.0, 7.0);
    return g / (1 + std::exp(-1.702 * g)) * (u + 1);
}

inline Rows feed_forward(const FeedForward &f, const Rows &x) {
    Rows up = product(f.up, x);
    const auto activation = [&](double value) {
        if (f.activation != Activation::xielu) return activated(f.activation, value);
        const double p = std::max(value, 0.0), m = std::min(value, 0.0);
        return value / 2 + (0.5 + std::log1p(std::exp(at(f.fall, 0)))) * (std::expm1(m) - m) +
               std::log1p(std::exp(at(f.rise, 0))) * p * p;
    };
    const Rows gate = f.gate ? product(f.gate, x) : Rows();
    for (size_t t = 0; t < x.size(); ++t) {
        for (size_t i = 0; i < up[t].size(); ++i) {
            up[t][i] = f.gate ? gated(f.activation, gate[t][i], up[t][i]) : activation(up[t][i]);
        }
    }
    return product(f.down, up);
}

// In what the rules differ.
struct Rule {
    bool removes; // the delta rule, whose q and k are divided by their length
    double least_step, most_step;
    Tensor skip;
};
inline Rule rule_of(const DeltaNet &) {
    return {true, 0, std::numeric_limits<double>::infinity(), {}};
}
inline Rule rule_of(const Mamba2 &mamba) {
    return {false, double(mamba.least_step), double(mamba.most_step), mamba.skip};
}

// q, k and v of all tokens, convolved; of a delta net, q and k divided by their length.
inline Rows convolved(const LinearAttention &d, bool unit_length, const Rows &input) {
    Rows out(input.size(), Row(static_cast<size_t>(d.channels())));
    for (size_t t = 0; t < input.size(); ++t) {
        size_t channel = 0;
        for (const Weight &part : d.convolution) {
            for (int64_t c = 0; c < part.rows(); ++c, ++channel) {
                double sum = or_else(part.bias, c, 0);
                for (int64_t w = 0; w < d.width; ++w) {
                    const int64_t from = static_cast<int64_t>(t) + w + 1 - d.width;
                    if (from < 0) continue;
                    sum += at(part.values, c * d.width + w) *
                           input[static_cast<size_t>(from)][channel];
                }
                out[t][channel] = activated(Activation::silu, sum);
            }
        }
        for (int64_t h = 0; unit_length && h < 2 * d.key_heads; ++h) {
            double *head = out[t].data() + h * d.key_dim;
            double squares = 1e-6;
            for (int64_t i = 0; i < d.key_dim; ++i) squares += head[i] * head[i];
            const double length = std::sqrt(squares * (h < d.key_heads ? d.key_dim : 1));
            for (int64_t i = 0; i < d.key_dim; ++i) head[i] /= length;
        }
    }
    return out;
}

// Runs the rule of head h over all tokens and appends its results to `out`. input, mixed: those of
// the tokens.
inline void run_rule(const LinearAttention &d, const Rule &rule, int64_t h, const Rows &input,
                     const Rows &mixed, Rows *out) {
    const int64_t key_head = h / (d.value_heads / d.key_heads);
    const bool removes = rule.removes;
    std::vector<Row> state(static_cast<size_t>(d.key_dim), Row(static_cast<size_t>(d.value_dim)));
    for (size_t t = 0; t < input.size(); ++t) {
        const double *query = mixed[t].data() + key_head * d.key_dim;
        const double *key = query + d.keys_size();
        const double *value = mixed[t].data() + 2 * d.keys_size() + h * d.value_dim;
        const double *gates = input[t].data() + d.channels() + d.values_size();
        const double raw = gates[(removes ? d.value_heads : 0) + h] + at(d.step_bias, h);
        const double step = std::clamp(std::log1p(std::exp(raw)), rule.least_step, rule.most_step);
        const double decay = std::exp(-std::exp(at(d.decay, h)) * step);
        const double rate = removes ? sigmoid(gates[h]) : step;
        for (size_t v = 0; v < static_cast<size_t>(d.value_dim); ++v) {
            double known = 0, result = or_else(rule.skip, h, 0) * value[v];
            for (size_t k = 0; removes && k < state.size(); ++k) {
                known += key[k] * decay * state[k][v];
            }
            for (size_t k = 0; k < state.size(); ++k) {
                state[k][v] = decay * state[k][v] + rate * key[k] * (value[v] - known);
                result += query[k] * state[k][v];
            }
            (*out)[t].push_back(result);
        }
    }
}

// The same of a net whose keys' channels decay differently. a: [value_heads * key_dim] of each token.
inline void run_channel_rule(const ChannelDeltaNet &d, int64_t h, const Rows &input, const Rows &a,
                             const Rows &mixed, Rows *out) {
    const int64_t key_head = h / (d.value_heads / d.key_heads);
    std::vector<Row> state(static_cast<size_t>(d.key_dim), Row(static_cast<size_t>(d.value_dim)));
    for (size_t t = 0; t < input.size(); ++t) {
        const double *query = mixed[t].data() + key_head * d.key_dim;
        const double *key = query + d.keys_size();
        const double *value = mixed[t].data() + 2 * d.keys_size() + h * d.value_dim;
        const double rate = sigmoid(input[t][static_cast<size_t>(d.channels() + d.gate_rank + h)]);
        for (size_t k = 0; k < state.size(); ++k) {
            const int64_t channel = h * d.key_dim + static_cast<int64_t>(k);
            const double raw = a[t][static_cast<size_t>(channel)] + at(d.step_bias, channel);
            for (double &x : state[k]) {
                x *= std::exp(-std::exp(at(d.decay, h)) * std::log1p(std::exp(raw)));
            }
        }
        for (size_t v = 0; v < static_cast<size_t>(d.value_dim); ++v) {
            double known = 0, result = 0;
            for (size_t k = 0; k < state.size(); ++k) known += key[k] * state[k][v];
            for (size_t k = 0; k < state.size(); ++k) {
                state[k][v] += rate * key[k] * (value[v] - known);
                result += query[k] * state[k][v];
            }
            (*out)[t].push_back(result);
        }
    }
}

template <typename Net> Rows results_of_rule(const Net &net, const Rows &input) {
    const Rule rule = rule_of(net);
    const Rows mixed = convolved(net, rule.removes, input);
    Rows out(input.size());
    for (int64_t h = 0; h < net.value_heads; ++h) run_rule(net, rule, h, input, mixed, &out);
    return out;
}

inline void gate(const LinearAttention &d, const Row &input, Row *out) {
    for (size_t i = 0; i < out->size(); ++i) {
        (*out)[i] *= activated(Activation::silu, input[static_cast<size_t>(d.channels()) + i]);
    }
}

// The input of the output matrix. input: q, k, v, z and gates of all heads, for each token.
inline Rows ruled(const DeltaNet &net, const Rows &input) {
    Rows out = results_of_rule(net, input);
    for (size_t t = 0; t < input.size(); ++t) {
        for (int64_t h = 0; h < net.value_heads; ++h) {
            normalise(net.norm, h * net.value_dim, net.value_dim, &out[t]);
        }
        gate(net, input[t], &out[t]);
    }
    return out;
}
inline Rows ruled(const ChannelDeltaNet &net, const Rows &input) {
    const auto part = [&](int64_t first) {
        Rows rows;
        for (const Row &row : input) {
            rows.emplace_back(row.begin() + first, row.begin() + first + net.gate_rank);
        }
        return rows;
    };
    const Rows z = product(net.z, part(net.channels()));
    const Rows a = product(net.a, part(net.channels() + net.gate_rank + net.gates()));
    const Rows mixed = convolved(net, true, input);
    Rows out(input.size());
    for (int64_t h = 0; h < net.value_heads; ++h) run_channel_rule(net, h, input, a, mixed, &out);
    for (size_t t = 0; t < input.size(); ++t) {
        for (int64_t h = 0; h < net.value_heads; ++h) {
            normalise(net.norm, h * net.value_dim, net.value_dim, &out[t]);
        }
        for (size_t i = 0; i < out[t].size(); ++i) out[t][i] *= sigmoid(z[t][i]);
    }
    return out;
}
inline Rows ruled(const Mamba2 &mamba, const Rows &input) {
    Rows out = results_of_rule(mamba, input);
    const int64_t length = mamba.values_size() / mamba.norm_parts;
    for (size_t t = 0; t < input.size(); ++t) {
        if (!mamba.norm_first) gate(mamba, input[t], &out[t]);
        for (int64_t p = 0; p < mamba.norm_parts; ++p) {
            normalise(mamba.norm, p * length, length, &out[t], p * length);
        }
        if (mamba.norm_first) gate(mamba, input[t], &out[t]);
    }
    return out;
}

// As model.h defines it, token by token.
template <typename Net> Rows linear_attention(const Net &d, const Rows &x) {
    Rows input(x.size());
    for (const Tensor &part : d.input) {
        const Rows rows = product({part, {}}, x);
        for (size_t t = 0; t < x.size(); ++t) {
            input[t].insert(input[t].end(), rows[t].begin(), rows[t].end());
        }
    }
    return product(d.o, ruled(d, input));
}

// As model.h defines it.
inline Rows short_convolution(const ShortConvolution &s, const Rows &x) {
    Rows products = product(s.b, x);
    const Rows factors = product(s.x, x);
    Rows out = product(s.c, x);
    for (size_t t = 0; t < x.size(); ++t) {
        for (size_t i = 0; i < factors[t].size(); ++i) products[t][i] *= factors[t][i];
        for (size_t i = 0; i < factors[t].size(); ++i) {
            double sum = or_else(s.filter.bias, static_cast<int64_t>(i), 0);
            for (int32_t w = 0; w < s.width; ++w) {
                const int64_t from = static_cast<int64_t>(t) + w + 1 - s.width;
                if (from < 0) continue;
                sum += at(s.filter.values, static_cast<int64_t>(i) * s.width + w) *
                       products[static_cast<size_t>(from)][i];
            }
            out[t][i] *= sum;
        }
    }
    return product(s.o, out);
}

// Of a sparse mixer.
inline Row mixed_weights(float jitter, const Row &logits) {
    Row weights(logits.size()), left = logits;
    for (int c = 0; c < 2; ++c) {
        const auto best =
            static_cast<size_t>(std::max_element(left.begin(), left.end()) - left.begin());
        const double most = left[best];
        double sum = 0;
        for (const double x : left) {
            const double far = (most - x) / std::max(std::fabs(x), most);
            if (std::isfinite(x) && far <= 2 * double(jitter)) sum += std::exp(x - most);
        }
        weights[best] = 1 / sum;
        left[best] = -std::numeric_limits<double>::infinity();
    }
    return weights;
}

// The weights of a token's experts; 0 for those that are not chosen. For a router without groups.
inline Row expert_weights(const Router &router, Row scores) {
    if (router.kind == RouterKind::sparse_mixer) return mixed_weights(router.jitter, scores);
    double total = 0;
    for (double &score : scores) {
        score = router.kind == RouterKind::sigmoid ? sigmoid(score) : std::exp(score);
        total += score;
    }
    for (double &score : scores) score /= router.kind == RouterKind::sigmoid ? 1 : total;
    const auto rank = [&](size_t e) {
        return scores[e] + or_else(router.correction, static_cast<int64_t>(e), 0);
    };
    std::vector<size_t> order(scores.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return rank(a) > rank(b); });
    order.resize(static_cast<size_t>(router.chosen));
    double chosen = double(router.epsilon);
    for (const size_t e : order) chosen += scores[e];
    Row weights(scores.size());
    for (const size_t e : order) {
        weights[e] = scores[e] / (router.normalised ? chosen : 1) * double(router.scale) *
                     or_else(router.expert_scale, static_cast<int64_t>(e), 1);
    }
    return weights;
}

// stream: the residual stream; x: the input of the layer's feed-forward.
inline Rows routed_experts(const Experts &experts, const Rows &stream, const Rows &x) {
    const Router &router = experts.router;
    const Rows of_router = experts.before ? normalised(router.norm, stream) : x;
    const Rows input = experts.before ? normalised(experts.before, stream) : x;
    const Rows scores = product({router.weight.values, {}}, of_router);
    Rows out(x.size(), Row(x[0].size()));
    for (size_t t = 0; t < x.size(); ++t) {
        Row logits = scores[t];
        for (size_t e = 0; e < logits.size(); ++e) {
            logits[e] = double(router.logits_scale) * logits[e] +
                        or_else(router.weight.bias, static_cast<int64_t>(e), 0);
        }
        const Row weights = expert_weights(router, logits);
        for (size_t e = 0; e < weights.size(); ++e) {
            if (weights[e] == 0) continue;
            Row row = input[t];
            for (double &value : row) value *= router.weighs_input ? weights[e] : 1;
            const Rows own = feed_forward(experts.each[e], {row});
            const double weight = router.weighs_input ? 1 : weights[e];
            for (size_t i = 0; i < own[0].size(); ++i) out[t][i] += weight * own[0][i];
        }
    }
    return normalised(experts.after, out);
}

inline void add(const Rows &delta, double scale, Rows *x) {
    for (size_t t = 0; t < x->size(); ++t) {
        for (size_t i = 0; i < (*x)[t].size(); ++i) (*x)[t][i] += scale * delta[t][i];
    }
}

inline Rows feed(const Feed &feed, const Rows &stream, const Rows &x) {
    return std::visit(
        Visitor{[&](const NoFeed &) { return Rows(x.size(), Row(x[0].size())); },
                [&](const FeedForward &alone) { return feed_forward(alone, x); },
                [&](const Experts &alone) { return routed_experts(alone, stream, x); },
                [&](const SharedExperts &both) {
                    Rows out = feed_forward(both.shared, x);
                    const Rows gates = both.gate ? product(both.gate, x) : Rows();
                    for (size_t t = 0; t < gates.size(); ++t) {
                        for (double &value : out[t]) value *= sigmoid(gates[t][0]);
                    }
                    out = normalised(both.after, out);
                    add(routed_experts(both.experts, stream, x), 1, &out);
                    return out;
                }},
        feed);
}

// x: the normed residual stream.
inline Rows mix(const Model &model, size_t layer, const Rows &x, const KvScales *scales,
                std::vector<KeysValues> *kept) {
    return std::visit(
        Visitor{
            [&](const NoMixer &) { return Rows(x.size(), Row(x[0].size())); },
            [&](const Attention &) { return attention(model, layer, x, scales, kept); },
            [&](const DeltaNet &net) { return linear_attention(net, x); },
            [&](const ChannelDeltaNet &net) { return linear_attention(net, x); },
            [&](const Mamba2 &mamba) { return linear_attention(mamba, x); },
            [&](const ShortConvolution &convolution) { return short_convolution(convolution, x); }},
        model.layers[layer].mixer);
}

// [tokens][layers * width]; x: the residual stream before the first layer.
inline Rows layer_inputs(const LayerInputs &inputs, std::span<const int32_t> tokens,
                         const Rows &x) {
    if (!inputs) return {};
    Rows out = product(inputs.projection, x);
    for (size_t t = 0; t < out.size(); ++t) {
        Row &row = out[t];
        const auto all = static_cast<int64_t>(row.size());
        for (double &value : row) value *= double(inputs.projection_scale);
        for (int64_t i = 0; i < all; i += inputs.width) {
            normalise(inputs.norm, i, inputs.width, &row);
        }
        for (int64_t i = 0; i < all; ++i) {
            const double own =
                double(inputs.embedding_scale) * at(inputs.embedding, int64_t{tokens[t]} * all + i);
            row[static_cast<size_t>(i)] =
                double(inputs.scale) * (row[static_cast<size_t>(i)] + own);
        }
    }
    return out;
}

// parts: those of all layers.
inline Rows input_block(const Model &model, size_t layer, const Rows &parts, const Rows &x) {
    const InputBlock &block = model.layers[layer].input;
    const auto width = static_cast<size_t>(model.layer_inputs.width);
    Rows gate = product(block.gate, x);
    for (size_t t = 0; t < x.size(); ++t) {
        for (size_t i = 0; i < width; ++i) {
            gate[t][i] = activated(block.activation, gate[t][i]) * parts[t][layer * width + i];
        }
    }
    return product(block.down, gate);
}

// input_of_mixer: what the layer before mixed; becomes what this one mixes.
inline void run_layer(const Model &model, size_t index, const Rows &parts, const KvScales *scales,
                      std::vector<KeysValues> *kept, Rows *input_of_mixer, Rows *x) {
    const Layer &layer = model.layers[index];
    const double scale = double(layer.residual_scale);
    Rows &input = *input_of_mixer;
    if (!layer.beside) input = normalised(layer.before_attention, *x);
    if (layer.mixes()) {
        const Rows mixed = mix(model, index, input, scales, kept);
        add(normalised(layer.after_attention, mixed), scale, x);
    }
    if (layer.feeds()) {
        const Rows second = layer.parallel ? input : normalised(layer.before_feed_forward, *x);
        add(normalised(layer.after_feed_forward, feed(layer.feed, *x, second)), scale, x);
    }
    if (model.layer_inputs) {
        add(normalised(layer.after_input, input_block(model, index, parts, *x)), 1, x);
    }
    for (Row &row : *x) {
        for (double &value : row) value *= or_else(layer.scalar, 0, 1);
    }
}

// [tokens][vocabulary]. scales: [layers] if keys and values are in e4m3, or none.
inline Rows logits(const Model &model, std::span<const int32_t> tokens,
                   const std::vector<KvScales> &scales = {}) {
    Rows x;
    for (const int32_t token : tokens) {
        Row row;
        for (int64_t i = 0; i < model.hidden; ++i) {
            row.push_back(double(model.embedding_scale) *
                          at(model.embedding, int64_t{token} * model.hidden + i));
        }
        x.push_back(std::move(row));
    }
    const Rows parts = layer_inputs(model.layer_inputs, tokens, x);
    std::vector<KeysValues> kept(model.layers.size());
    Rows input;
    for (size_t i = 0; i < model.layers.size(); ++i) {
        run_layer(model, i, parts, scales.empty() ? nullptr : &scales[i], &kept, &input, &x);
    }
    Rows out = product(model.head, normalised(model.final_norm, std::move(x)));
    const double cap = double(model.logits_softcap);
    for (Row &row : out) {
        for (double &value : row) {
            value *= double(model.logits_scale);
            if (cap != 0) value = cap * std::tanh(value / cap);
        }
    }
    return out;
}

// The largest difference of a log-probability, for a row's tokens from `first` on.
inline double largest_difference(const std::vector<float> &got, const Rows &logits, size_t first) {
    double most = 0;
    size_t place = 0;
    for (size_t t = first; place < got.size(); ++t) {
        double largest = -INFINITY, total = 0;
        for (const double x : logits[t]) largest = std::max(largest, x);
        for (const double x : logits[t]) total += std::exp(x - largest);
        for (const double x : logits[t]) {
            most = std::max(most, std::abs(x - largest - std::log(total) - double(got[place++])));
        }
    }
    return most;
}

// Random weights, rounded by round(): matrices that keep the magnitude of their input, vectors
// around one half. Returns their memory.
template <typename Round>
std::deque<std::vector<float>> fill(Model *model, uint64_t seed, const Round &round) {
    std::deque<std::vector<float>> kept;
    std::mt19937_64 random(seed);
    for_each_tensor(model, [&](Tensor *tensor) {
        const bool matrix = tensor->columns > 1;
        float spread = matrix ? 1 / std::sqrt(static_cast<float>(tensor->columns)) : 0.5F;
        if (tensor == &model->embedding) spread = 1; // as large as the outputs of layers
        std::normal_distribution<float> normal(matrix ? 0.0F : 0.5F, spread);
        std::vector<float> &values =
            kept.emplace_back(static_cast<size_t>(tensor->rows * tensor->columns));
        for (float &value : values) value = round(normal(random));
        tensor->dtype = DType::f32;
        tensor->data = reinterpret_cast<const std::byte *>(values.data());
    });
    if (model->tied) model->head.values = model->embedding;
    return kept;
}

} // namespace batchllm::reference
