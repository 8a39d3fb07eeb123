#include "backend/cpu/linear_attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "backend/cpu/forward_tasks.h"
#include "base/narrow_floats.h"

namespace batchllm::cpu {
namespace {

// From this many tokens on, matrix products are faster than going token by token.
constexpr int32_t kChunkedTokens = 16;

void widen(const std::byte *from, int64_t count, float *to) {
    const auto *numbers = reinterpret_cast<const uint16_t *>(from);
    for (int64_t i = 0; i < count; ++i) to[i] = bfloat16_to_float(numbers[i]);
}

void narrow(const float *from, int64_t count, std::byte *to) {
    auto *numbers = reinterpret_cast<uint16_t *>(to);
    for (int64_t i = 0; i < count; ++i) numbers[i] = float_to_bfloat16(from[i]);
}

float softplus(float x) { return x > 20 ? x : std::log1p(std::exp(x)); }

} // namespace

Status LinearAttentionLayers::allocate(const Model &model, int64_t step_tokens) {
    int64_t projected = 0, channels = 0, heads = 0, scratch = 0, wide = 0;
    int64_t rank = 0, decays = 0, gates = 0;
    for (const Layer &layer : model.layers) {
        const LinearAttention *attention = layer.linear_attention();
        if (attention == nullptr) continue;
        projected = std::max(projected, attention->input_rows());
        channels = std::max(channels, attention->channels());
        heads = std::max<int64_t>(heads, attention->value_heads);
        scratch = std::max(scratch, delta_scratch_floats(attention->key_dim, attention->value_dim));
        wide = std::max(wide, StatePool::matrix_numbers(*attention));
        if (attention->gate_rank == 0) continue;
        rank = std::max<int64_t>(rank, attention->gate_rank);
        decays = std::max(decays, int64_t{attention->value_heads} * attention->key_dim);
        gates = std::max(gates, attention->values_size());
    }
    if (projected == 0) return {};
    const char *what = "a step's buffers";
    ASSIGN_OR_RETURN(projected_, Buffer::create(step_tokens * projected * 4, what));
    ASSIGN_OR_RETURN(mixed_, Buffer::create(step_tokens * channels * 4, what));
    ASSIGN_OR_RETURN(log_decay_, Buffer::create(step_tokens * heads * 4, what));
    ASSIGN_OR_RETURN(rate_, Buffer::create(step_tokens * heads * 4, what));
    const int64_t rows = Linear::rounded_rows(step_tokens) * dtype_bytes(kernels_.element);
    ASSIGN_OR_RETURN(low_, Buffer::create(rows * rank, what));
    ASSIGN_OR_RETURN(decays_, Buffer::create(step_tokens * decays * 4, what));
    ASSIGN_OR_RETURN(z_, Buffer::create(step_tokens * gates * 4, what));
    zeros_.assign(static_cast<size_t>(channels), 0.0f);
    for (int32_t t = 0; t < pool_->size(); ++t) {
        ASSIGN_OR_RETURN(Buffer buffer, Buffer::create(scratch * 4, what));
        scratch_.push_back(std::move(buffer));
        ASSIGN_OR_RETURN(buffer, Buffer::create(wide * 4, what));
        wide_.push_back(std::move(buffer));
    }
    return {};
}

// Queries and keys of a delta net.
void LinearAttentionLayers::set_lengths(const LinearAttention &net,
                                        const PackedLinearAttention &weights, float *mixed) const {
    // x / sqrt(sum of squares + 1e-6), expressed as an RMSNorm.
    const float epsilon = 1e-6f / static_cast<float>(net.key_dim);
    for (int32_t h = 0; h < 2 * net.key_heads; ++h, mixed += net.key_dim) {
        const Vector &scale = h < net.key_heads ? weights.query_scale : weights.key_scale;
        kernels_.rms_norm_head(mixed, scale.data(), epsilon, net.key_dim);
    }
}

void LinearAttentionLayers::prepare(const DeltaNet &net, const PackedLinearAttention &weights,
                                    int64_t token, float *mixed) const {
    const int64_t heads = net.value_heads;
    const float *b = projected(net, token) + net.channels() + net.values_size(), *a = b + heads;
    for (int64_t h = 0; h < heads; ++h) {
        const auto at = static_cast<size_t>(h);
        rate_.floats()[token * heads + h] = 1 / (1 + std::exp(-b[h]));
        log_decay_.floats()[token * heads + h] =
            weights.decay[at] * softplus(a[h] + weights.step_bias[at]);
    }
    set_lengths(net, weights, mixed);
}

void LinearAttentionLayers::prepare(const ChannelDeltaNet &net,
                                    const PackedLinearAttention &weights, int64_t token,
                                    float *mixed) const {
    const int64_t heads = net.value_heads;
    const float *b = projected(net, token) + net.channels() + net.gate_rank;
    float *decays = decays_.floats() + token * heads * net.key_dim;
    const float *bias = weights.step_bias.data();
    for (int64_t h = 0; h < heads; ++h) {
        rate_.floats()[token * heads + h] = 1 / (1 + std::exp(-b[h]));
        for (int32_t k = 0; k < net.key_dim; ++k, ++decays, ++bias) {
            *decays = std::exp(weights.decay[static_cast<size_t>(h)] * softplus(*decays + *bias));
        }
    }
    set_lengths(net, weights, mixed);
}

void LinearAttentionLayers::prepare(const Mamba2 &net, const PackedLinearAttention &weights,
                                    int64_t token, float *) const {
    const int64_t heads = net.value_heads;
    const float *a = projected(net, token) + net.channels() + net.values_size();
    for (int64_t h = 0; h < heads; ++h) {
        const auto at = static_cast<size_t>(h);
        const float step =
            std::clamp(softplus(a[h] + weights.step_bias[at]), net.least_step, net.most_step);
        rate_.floats()[token * heads + h] = step;
        log_decay_.floats()[token * heads + h] = weights.decay[at] * step;
    }
}

// From the numbers at `column` of each token's projection.
Status LinearAttentionLayers::make_gate(const PackedMatrix &matrix, const LinearAttention &net,
                                        int64_t column, int64_t tokens, float *out) {
    const int32_t rank = net.gate_rank;
    const int64_t row_bytes = rank * dtype_bytes(kernels_.element);
    for (int64_t t = 0; t < tokens; ++t) {
        kernels_.store_elements(projected(net, t) + column, 1, rank, rank,
                                low_.data() + t * row_bytes);
    }
    return linear_->run(matrix, low_.data(), tokens, [&](const Linear::Tile &tile) {
        for (int64_t r = 0; r < tile.rows; ++r) {
            kernels_.copy_bias(tile.data + r * tile.width, nullptr,
                               static_cast<int32_t>(tile.width),
                               out + (tile.row + r) * matrix.rows + tile.column);
        }
    });
}

Status LinearAttentionLayers::make_gates(const ChannelDeltaNet &net,
                                         const PackedLinearAttention &weights, int64_t tokens) {
    const int64_t z = net.channels(), a = z + net.gate_rank + net.gates();
    RETURN_IF_ERROR(make_gate(weights.z, net, z, tokens, z_.floats()));
    return make_gate(weights.a, net, a, tokens, decays_.floats());
}

// q, k and v for some of a node's tokens, and their gates.
template <typename Net> void LinearAttentionLayers::convolve(const Net &net,
                                                             const PackedLinearAttention &weights,
                                                             size_t layer, const Piece &piece) {
    const Node &node = work_.nodes[static_cast<size_t>(piece.node)];
    const int64_t channels = net.channels();
    const int32_t before = net.width - 1;
    const float *kept = node.from < 0 ? nullptr : states_.inputs(node.from, layer, net);
    std::array<const float *, most_convolution_width> inputs{};
    for (int32_t t = piece.begin; t < piece.end; ++t) {
        for (int32_t w = 0; w < net.width; ++w) {
            const int32_t at = t - before + w;
            inputs[static_cast<size_t>(w)] = at >= 0 ? projected(net, node.token_begin + at)
                                             : kept != nullptr ? kept + (before + at) * channels
                                                               : zeros_.data();
        }
        const int64_t token = node.token_begin + t;
        float *out = mixed(net, token);
        const float *bias =
            weights.convolution_bias.empty() ? nullptr : weights.convolution_bias.data();
        kernels_.convolve(inputs.data(), weights.convolution.data(), bias, net.width,
                          static_cast<int32_t>(channels), out);
        prepare(net, weights, token, out);
    }
}

void LinearAttentionLayers::run_head(const LinearAttention &attention,
                                     const PackedLinearAttention &weights, size_t layer,
                                     const Node &node, bool removes, int64_t head, int32_t thread) {
    const int64_t key_head = head / (attention.value_heads / attention.key_heads);
    float *rows = mixed(attention, node.token_begin);
    DeltaCall call;
    call.tokens = node.token_count;
    call.key_dim = attention.key_dim;
    call.value_dim = attention.value_dim;
    call.queries = rows + key_head * attention.key_dim;
    call.keys = call.queries + attention.keys_size();
    call.values = rows + 2 * attention.keys_size() + head * attention.value_dim;
    call.token_stride = attention.channels();
    call.log_decay = log_decay_.floats() + node.token_begin * attention.value_heads + head;
    call.rate = rate_.floats() + node.token_begin * attention.value_heads + head;
    call.gate_stride = attention.value_heads;
    if (attention.gate_rank > 0) {
        call.decay_stride = int64_t{attention.value_heads} * attention.key_dim;
        call.decays = decays_.floats() + node.token_begin * call.decay_stride + head * call.key_dim;
    }
    call.removes = removes;
    if (!weights.skip.empty()) call.skip = weights.skip[static_cast<size_t>(head)];
    call.scratch = scratch_[static_cast<size_t>(thread)].floats();
    const bool recurrent = reproducible_ || call.decays != nullptr || call.tokens < kChunkedTokens;
    const auto run = recurrent ? kernels_.delta_recurrent : kernels_.delta_chunked;
    const std::byte *from =
        node.from < 0 ? nullptr : states_.matrix(node.from, layer, attention, head);
    std::byte *to = states_.matrix(node.state, layer, attention, head);
    if (states_.type() == DType::f32) {
        call.from = reinterpret_cast<const float *>(from);
        call.state = reinterpret_cast<float *>(to);
        return run(call);
    }
    const int64_t numbers = StatePool::matrix_numbers(attention);
    call.state = wide_[static_cast<size_t>(thread)].floats();
    if (from != nullptr) {
        widen(from, numbers, call.state);
        call.from = call.state;
    }
    run(call);
    narrow(call.state, numbers, to);
}

// Writes the convolution's last inputs to the node's slot.
void LinearAttentionLayers::keep_inputs(const LinearAttention &attention, size_t layer,
                                        const Node &node) {
    const int64_t channels = attention.channels();
    const int32_t kept = attention.width - 1;
    const size_t row_bytes = static_cast<size_t>(channels) * sizeof(float);
    float *to = states_.inputs(node.state, layer, attention);
    const float *from = node.from < 0 ? nullptr : states_.inputs(node.from, layer, attention);
    // In this order, because if the slots are the same, a row must be read before it is
    // overwritten.
    for (int32_t i = 0; i < kept; ++i) {
        const int32_t at = node.token_count - kept + i;
        const float *row = at >= 0           ? projected(attention, node.token_begin + at)
                           : from != nullptr ? from + (kept + at) * channels
                                             : zeros_.data();
        std::memmove(to + i * channels, row, row_bytes);
    }
}

template <typename Net>
Status LinearAttentionLayers::run(const Net &net, const PackedLinearAttention &weights,
                                  size_t layer, const std::byte *x, int64_t tokens) {
    constexpr bool removes = !std::is_same_v<Net, Mamba2>;
    RETURN_IF_ERROR(linear_->run(weights.input, x, tokens, [&](const Linear::Tile &tile) {
        for (int64_t r = 0; r < tile.rows; ++r) {
            kernels_.copy_bias(tile.data + r * tile.width, nullptr,
                               static_cast<int32_t>(tile.width),
                               projected(net, tile.row + r) + tile.column);
        }
    }));
    if constexpr (std::is_same_v<Net, ChannelDeltaNet>) {
        RETURN_IF_ERROR(make_gates(net, weights, tokens));
    }
    for (const StateWork::Level &level : work_.levels) {
        pool_->parallel_for(static_cast<int64_t>(level.piece_end - level.piece_begin),
                            [&](int64_t i, int32_t) {
                                convolve(net, weights, layer,
                                         work_.pieces[level.piece_begin + static_cast<size_t>(i)]);
                            });
        // A node's heads, plus one task for the inputs that it keeps.
        const int64_t tasks = net.value_heads + 1;
        pool_->parallel_for(static_cast<int64_t>(level.node_end - level.node_begin) * tasks,
                            [&](int64_t i, int32_t thread) {
                                const Node &node =
                                    work_.nodes[level.node_begin + static_cast<size_t>(i / tasks)];
                                const int64_t head = i % tasks;
                                if (head == net.value_heads) {
                                    keep_inputs(net, layer, node);
                                } else {
                                    run_head(net, weights, layer, node, removes, head, thread);
                                }
                            });
    }
    return {};
}

template Status LinearAttentionLayers::run(const DeltaNet &, const PackedLinearAttention &, size_t,
                                           const std::byte *, int64_t);
template Status LinearAttentionLayers::run(const ChannelDeltaNet &, const PackedLinearAttention &,
                                           size_t, const std::byte *, int64_t);
template Status LinearAttentionLayers::run(const Mamba2 &, const PackedLinearAttention &, size_t,
                                           const std::byte *, int64_t);

template <typename Part>
void LinearAttentionLayers::each_result(const LinearAttention &attention, Gates gates,
                                        int64_t length, const std::vector<int32_t> *wanted,
                                        int64_t rows, std::byte *out, const Part &part) const {
    const int64_t parts = attention.values_size() / length;
    const int64_t part_bytes = length * dtype_bytes(kernels_.element);
    pool_->parallel_for(task_count(rows), [&](int64_t task, int32_t) {
        const int64_t last = std::min(rows, (task + 1) * kTokensOfTask);
        for (int64_t r = task * kTokensOfTask; r < last; ++r) {
            const int64_t token = wanted == nullptr ? r : (*wanted)[static_cast<size_t>(r)];
            float *result = mixed(attention, token) + 2 * attention.keys_size();
            const float *gate = gates.first + token * gates.stride;
            for (int64_t p = 0; p < parts; ++p) {
                const int64_t index = r * parts + p;
                part(index, result + p * length, gate + p * length, out + index * part_bytes);
            }
        }
    });
}

Status LinearAttentionLayers::results(const DeltaNet &net, const PackedLinearAttention &weights,
                                      const std::vector<int32_t> *wanted, int64_t rows,
                                      std::byte *out) const {
    const auto multiply = kernels_.activate[static_cast<size_t>(Activation::silu)];
    const int32_t length = net.value_dim;
    each_result(net, gates_of(net), length, wanted, rows, out,
                [&](int64_t, float *result, const float *gate, std::byte *to) {
                    kernels_.rms_norm_head(result, weights.norm.weight.data(), weights.norm.epsilon,
                                           length);
                    multiply(gate, result, nullptr, nullptr, nullptr, length, to);
                });
    return {};
}

Status LinearAttentionLayers::results(const ChannelDeltaNet &net,
                                      const PackedLinearAttention &weights,
                                      const std::vector<int32_t> *wanted, int64_t rows,
                                      std::byte *out) const {
    const int32_t length = net.value_dim;
    each_result(net, {z_.floats(), net.values_size()}, length, wanted, rows, out,
                [&](int64_t, float *result, const float *gate, std::byte *to) {
                    kernels_.rms_norm_head(result, weights.norm.weight.data(), weights.norm.epsilon,
                                           length);
                    kernels_.scale_sigmoid(gate, length, result);
                    kernels_.store_elements(result, 1, length, length, to);
                });
    return {};
}

Status LinearAttentionLayers::results(const Mamba2 &net, const PackedLinearAttention &weights,
                                      const std::vector<int32_t> *wanted, int64_t rows,
                                      std::byte *out) const {
    const auto length = static_cast<int32_t>(net.values_size() / net.norm_parts);
    const auto multiply = kernels_.activate[static_cast<size_t>(Activation::silu)];
    const PackedNorm &norm = weights.norm;
    std::vector<float> squares; // [rows, norm_parts] if ranks share norms
    if (net.norm_ranks > 1) {
        squares.resize(static_cast<size_t>(rows * net.norm_parts));
        each_result(net, gates_of(net), length, wanted, rows, out,
                    [&](int64_t i, float *result, const float *gate, std::byte *) {
                        kernels_.scale_silu(gate, length, result);
                        squares[static_cast<size_t>(i)] = mean_square(result, length);
                    });
        RETURN_IF_ERROR(share_squares(rank_, net.norm_ranks, squares));
    }
    each_result(net, gates_of(net), length, wanted, rows, out,
                [&](int64_t i, float *result, const float *gate, std::byte *to) {
                    const float *weight =
                        norm ? norm.weight.data() + i % net.norm_parts * length : nullptr;
                    if (norm && !net.norm_first) {
                        float epsilon = norm.epsilon;
                        if (squares.empty()) {
                            kernels_.scale_silu(gate, length, result);
                        } else {
                            epsilon += squares[static_cast<size_t>(i)];
                        }
                        return kernels_.rms_norm(result, weight, epsilon, length, to);
                    }
                    if (norm) kernels_.rms_norm_head(result, weight, norm.epsilon, length);
                    multiply(gate, result, nullptr, nullptr, nullptr, length, to);
                });
    return {};
}

} // namespace batchllm::cpu
