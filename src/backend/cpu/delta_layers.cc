#include "backend/cpu/delta_layers.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "backend/cpu/forward_tasks.h"
#include "base/narrow_floats.h"

namespace batchllm::cpu {
namespace {

// From so many tokens on, products of matrices take less time than going token by token.
constexpr int32_t kChunkedTokens = 16;
constexpr int32_t kMostWidth = 64;

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

Status DeltaLayers::allocate(const Model &model, int64_t step_tokens) {
    int64_t projected = 0, channels = 0, heads = 0, scratch = 0, wide = 0;
    for (const Layer &layer : model.layers) {
        const DeltaNet &delta = layer.delta;
        if (!delta) continue;
        if (delta.width > kMostWidth) {
            return error(BATCHLLM_ERROR_UNSUPPORTED, "cpu backend: a convolution over %d tokens",
                         delta.width);
        }
        projected = std::max(projected, delta.input_rows());
        channels = std::max(channels, delta.channels());
        heads = std::max<int64_t>(heads, delta.value_heads);
        scratch = std::max(scratch, delta_scratch_floats(delta.key_dim, delta.value_dim));
        wide = std::max(wide, StatePool::matrix_numbers(delta));
    }
    if (projected == 0) return {};
    const char *what = "a step's buffers";
    ASSIGN_OR_RETURN(projected_, Buffer::create(step_tokens * projected * 4, what));
    ASSIGN_OR_RETURN(mixed_, Buffer::create(step_tokens * channels * 4, what));
    ASSIGN_OR_RETURN(log_decay_, Buffer::create(step_tokens * heads * 4, what));
    ASSIGN_OR_RETURN(rate_, Buffer::create(step_tokens * heads * 4, what));
    zeros_.assign(static_cast<size_t>(channels), 0.0f);
    for (int32_t t = 0; t < pool_->size(); ++t) {
        ASSIGN_OR_RETURN(Buffer buffer, Buffer::create(scratch * 4, what));
        scratch_.push_back(std::move(buffer));
        ASSIGN_OR_RETURN(buffer, Buffer::create(wide * 4, what));
        wide_.push_back(std::move(buffer));
    }
    return {};
}

// q, k and v of some of a node's tokens: convolved, and q and k over their length.
void DeltaLayers::convolve(const DeltaNet &delta, const PackedDelta &weights, size_t layer,
                           const Piece &piece) {
    const Node &node = work_.nodes[static_cast<size_t>(piece.node)];
    const int64_t channels = delta.channels();
    const int32_t before = delta.width - 1;
    const float *kept = node.from < 0 ? nullptr : states_.inputs(node.from, layer, delta);
    std::array<const float *, kMostWidth> inputs{};
    for (int32_t t = piece.begin; t < piece.end; ++t) {
        for (int32_t w = 0; w < delta.width; ++w) {
            const int32_t at = t - before + w;
            inputs[static_cast<size_t>(w)] = at >= 0 ? projected(delta, node.token_begin + at)
                                             : kept != nullptr ? kept + (before + at) * channels
                                                               : zeros_.data();
        }
        const int64_t token = node.token_begin + t;
        float *out = mixed(delta, token);
        kernels_.convolve(inputs.data(), weights.convolution.data(), delta.width,
                          static_cast<int32_t>(channels), out);
        // x / sqrt(sum of squares + 1e-6) as an RMSNorm.
        const float epsilon = 1e-6f / static_cast<float>(delta.key_dim);
        for (int32_t h = 0; h < 2 * delta.key_heads; ++h, out += delta.key_dim) {
            const Vector &scale = h < delta.key_heads ? weights.query_scale : weights.key_scale;
            kernels_.rms_norm_head(out, scale.data(), epsilon, delta.key_dim);
        }
        gates(delta, weights, token);
    }
}

void DeltaLayers::gates(const DeltaNet &delta, const PackedDelta &weights, int64_t token) {
    const int64_t heads = delta.value_heads;
    const float *b = projected(delta, token) + delta.channels() + delta.values_size();
    const float *a = b + heads;
    for (int64_t h = 0; h < heads; ++h) {
        const auto at = static_cast<size_t>(h);
        rate_.floats()[token * heads + h] = 1 / (1 + std::exp(-b[h]));
        log_decay_.floats()[token * heads + h] =
            weights.decay[at] * softplus(a[h] + weights.step[at]);
    }
}

void DeltaLayers::run_head(const DeltaNet &delta, size_t layer, const Node &node, int64_t head,
                           int32_t thread) {
    const int64_t key_head = head / (delta.value_heads / delta.key_heads);
    float *rows = mixed(delta, node.token_begin);
    DeltaCall call;
    call.tokens = node.token_count;
    call.key_dim = delta.key_dim;
    call.value_dim = delta.value_dim;
    call.queries = rows + key_head * delta.key_dim;
    call.keys = call.queries + delta.keys_size();
    call.values = rows + 2 * delta.keys_size() + head * delta.value_dim;
    call.token_stride = delta.channels();
    call.log_decay = log_decay_.floats() + node.token_begin * delta.value_heads + head;
    call.rate = rate_.floats() + node.token_begin * delta.value_heads + head;
    call.gate_stride = delta.value_heads;
    call.scratch = scratch_[static_cast<size_t>(thread)].floats();
    const bool recurrent = reproducible_ || call.tokens < kChunkedTokens;
    const auto run = recurrent ? kernels_.delta_recurrent : kernels_.delta_chunked;
    const std::byte *from = node.from < 0 ? nullptr : states_.matrix(node.from, layer, delta, head);
    std::byte *to = states_.matrix(node.state, layer, delta, head);
    if (states_.type() == DType::f32) {
        call.from = reinterpret_cast<const float *>(from);
        call.state = reinterpret_cast<float *>(to);
        return run(call);
    }
    const int64_t numbers = StatePool::matrix_numbers(delta);
    call.state = wide_[static_cast<size_t>(thread)].floats();
    if (from != nullptr) {
        widen(from, numbers, call.state);
        call.from = call.state;
    }
    run(call);
    narrow(call.state, numbers, to);
}

// The convolution's last inputs into the node's slot.
void DeltaLayers::keep_inputs(const DeltaNet &delta, size_t layer, const Node &node) {
    const int64_t channels = delta.channels();
    const int32_t kept = delta.width - 1;
    const size_t row_bytes = static_cast<size_t>(channels) * sizeof(float);
    float *to = states_.inputs(node.state, layer, delta);
    const float *from = node.from < 0 ? nullptr : states_.inputs(node.from, layer, delta);
    // In order: where it is the same slot, a row is read before it is written.
    for (int32_t i = 0; i < kept; ++i) {
        const int32_t at = node.token_count - kept + i;
        const float *row = at >= 0           ? projected(delta, node.token_begin + at)
                           : from != nullptr ? from + (kept + at) * channels
                                             : zeros_.data();
        std::memmove(to + i * channels, row, row_bytes);
    }
}

Status DeltaLayers::run(const DeltaNet &delta, const PackedDelta &weights, size_t layer,
                        const std::byte *x, int64_t tokens) {
    RETURN_IF_ERROR(linear_->run(weights.input, x, tokens, [&](const Linear::Tile &tile) {
        for (int64_t r = 0; r < tile.rows; ++r) {
            kernels_.copy_bias(tile.data + r * tile.width, nullptr,
                               static_cast<int32_t>(tile.width),
                               projected(delta, tile.row + r) + tile.column);
        }
    }));
    for (const StateWork::Level &level : work_.levels) {
        pool_->parallel_for(static_cast<int64_t>(level.piece_end - level.piece_begin),
                            [&](int64_t i, int32_t) {
                                convolve(delta, weights, layer,
                                         work_.pieces[level.piece_begin + static_cast<size_t>(i)]);
                            });
        // A node's heads, and one task more for the inputs that it keeps.
        const int64_t tasks = delta.value_heads + 1;
        pool_->parallel_for(static_cast<int64_t>(level.node_end - level.node_begin) * tasks,
                            [&](int64_t i, int32_t thread) {
                                const Node &node =
                                    work_.nodes[level.node_begin + static_cast<size_t>(i / tasks)];
                                const int64_t head = i % tasks;
                                if (head == delta.value_heads) {
                                    keep_inputs(delta, layer, node);
                                } else {
                                    run_head(delta, layer, node, head, thread);
                                }
                            });
    }
    return {};
}

void DeltaLayers::results(const DeltaNet &delta, const PackedDelta &weights,
                          const std::vector<int32_t> *wanted, int64_t rows, std::byte *out) const {
    const int64_t head_bytes = delta.value_dim * dtype_bytes(kernels_.element);
    const auto multiply = kernels_.activate[static_cast<size_t>(Activation::silu)];
    pool_->parallel_for(task_count(rows), [&](int64_t task, int32_t) {
        const int64_t last = std::min(rows, (task + 1) * kTokensOfTask);
        for (int64_t r = task * kTokensOfTask; r < last; ++r) {
            const int64_t token = wanted == nullptr ? r : (*wanted)[static_cast<size_t>(r)];
            float *result = mixed(delta, token) + 2 * delta.keys_size();
            const float *gate = projected(delta, token) + delta.channels();
            std::byte *to = out + r * delta.value_heads * head_bytes;
            for (int32_t h = 0; h < delta.value_heads; ++h) {
                kernels_.rms_norm_head(result, weights.norm.weight.data(), weights.norm.epsilon,
                                       delta.value_dim);
                multiply(gate, result, nullptr, nullptr, delta.value_dim, to);
                result += delta.value_dim;
                gate += delta.value_dim;
                to += head_bytes;
            }
        }
    });
}

} // namespace batchllm::cpu
