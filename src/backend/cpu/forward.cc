#include "backend/cpu/forward.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

namespace batchllm::cpu {
namespace {

constexpr int64_t kTokensOfTask = 16;

int64_t task_count(int64_t rows) { return (rows + kTokensOfTask - 1) / kTokensOfTask; }

// Adds the time since the last lap to a part.
class Laps {
  public:
    void lap(double *part) {
        const auto now = std::chrono::steady_clock::now();
        *part += std::chrono::duration<double>(now - last_).count();
        last_ = now;
    }

  private:
    std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

const float *bias_at(const Vector &bias, int64_t column) {
    return bias.empty() ? nullptr : bias.data() + column;
}

} // namespace

Result<std::unique_ptr<Forward>> Forward::create(const Model &model, const Kernels &kernels,
                                                 ThreadPool *pool, int64_t step_tokens) {
    std::unique_ptr<Forward> forward(new Forward(model, kernels, pool, step_tokens));
    ASSIGN_OR_RETURN(forward->linear_, Linear::create(kernels.element, pool));
    ASSIGN_OR_RETURN(forward->weights_, pack_weights(model, forward->linear_.get()));
    RETURN_IF_ERROR(forward->allocate());
    return forward;
}

Status Forward::allocate() {
    const int64_t rows = Linear::rounded_rows(step_tokens_);
    const int64_t element = dtype_bytes(kernels_.element);
    const int64_t head_dim = config_.head_dim;
    const int64_t qkv_size = (int64_t{config_.heads} + 2 * int64_t{config_.kv_heads}) * head_dim;
    const char *what = "a step's buffers";
    ASSIGN_OR_RETURN(cosine_, Buffer::create(step_tokens_ * head_dim / 2 * 4, what));
    ASSIGN_OR_RETURN(sine_, Buffer::create(step_tokens_ * head_dim / 2 * 4, what));
    ASSIGN_OR_RETURN(residual_, Buffer::create(step_tokens_ * config_.hidden * 4, what));
    ASSIGN_OR_RETURN(input_, Buffer::create(rows * config_.hidden * element, what));
    ASSIGN_OR_RETURN(qkv_, Buffer::create(step_tokens_ * qkv_size * 4, what));
    ASSIGN_OR_RETURN(queries_, Buffer::create(step_tokens_ * config_.heads *
                                                  padded_head_dim(config_.head_dim) * element,
                                              what));
    ASSIGN_OR_RETURN(attended_, Buffer::create(rows * config_.heads * head_dim * element, what));
    ASSIGN_OR_RETURN(activated_, Buffer::create(rows * config_.intermediate * element, what));
    inverse_frequencies_ = rope_inverse_frequencies(config_.rope, config_.head_dim);
    zeros_.assign(static_cast<size_t>(head_dim), 0.0f);
    return {};
}

Status Forward::take_pages(KvPages pages) {
    pages_ = std::move(pages);
    attention_ = std::make_unique<Attention>(config_, kernels_, pages_, pool_);
    return {};
}

void Forward::prepare(const TokenBatch &batch, const std::vector<int32_t> &wanted) {
    const int64_t tokens = static_cast<int64_t>(batch.tokens.size());
    node_of_.resize(static_cast<size_t>(tokens));
    for (size_t n = 0; n < batch.nodes.size(); ++n) {
        const ContextNode &node = batch.nodes[n];
        std::fill_n(node_of_.begin() + node.token_begin, node.token_count, static_cast<int32_t>(n));
    }
    wanted_rows_ = static_cast<int64_t>(wanted.size());
    row_of_.assign(static_cast<size_t>(tokens), -1);
    for (size_t i = 0; i < wanted.size(); ++i) row_of_[wanted[i]] = static_cast<int32_t>(i);

    WorklistOptions options{0, config_.gqa_ratio(), config_.kv_heads, pool_->size()};
    bool some_full = false;
    bool some_windowed = false;
    for (int32_t layer = 0; layer + 1 < config_.layers; ++layer) {
        (config_.window(layer) == 0 ? some_full : some_windowed) = true;
    }
    if (some_full) build_worklist(batch, {}, options, &all_);
    options.window = config_.sliding_window;
    if (some_windowed) build_worklist(batch, {}, options, &windowed_);
    options.window = config_.window(config_.layers - 1);
    build_worklist(batch, row_of_, options, &last_);

    const int64_t half = config_.head_dim / 2;
    pool_->parallel_for(task_count(tokens), [&](int64_t task, int32_t) {
        const int64_t last = std::min(tokens, (task + 1) * kTokensOfTask);
        for (int64_t t = task * kTokensOfTask; t < last; ++t) {
            read_row(model_.embedding, batch.tokens[t], residual_.floats() + t * config_.hidden);
            for (int64_t i = 0; i < half; ++i) {
                // In float, as the reference models compute it.
                const float angle =
                    static_cast<float>(batch.positions[t]) * inverse_frequencies_[i];
                cosine_.floats()[t * half + i] = std::cos(angle);
                sine_.floats()[t * half + i] = std::sin(angle);
            }
        }
    });
}

void Forward::norm(const float *x, const Vector &weight, int64_t rows, std::byte *out) {
    const int64_t hidden = config_.hidden;
    const int64_t row_bytes = hidden * dtype_bytes(kernels_.element);
    const float epsilon = static_cast<float>(config_.norm_epsilon);
    pool_->parallel_for(task_count(rows), [&](int64_t task, int32_t) {
        const int64_t last = std::min(rows, (task + 1) * kTokensOfTask);
        for (int64_t r = task * kTokensOfTask; r < last; ++r) {
            kernels_.rms_norm(x + r * hidden, weight.data(), epsilon, config_.hidden,
                              out + r * row_bytes);
        }
    });
}

// One token's queries, scaled for a softmax in base 2, and its keys and values into their page.
void Forward::write_token(const TokenBatch &batch, int32_t layer, int32_t token) {
    const PackedLayer &weights = weights_.layers[layer];
    const int32_t head_dim = config_.head_dim;
    const int32_t half = head_dim / 2;
    const int32_t padded = padded_head_dim(head_dim);
    const int32_t ratio = config_.gqa_ratio();
    const int64_t tokens = static_cast<int64_t>(batch.tokens.size());
    const int64_t element = dtype_bytes(kernels_.element);
    const float epsilon = static_cast<float>(config_.norm_epsilon);
    const float query_scale =
        static_cast<float>(1.4426950408889634 / std::sqrt(static_cast<double>(head_dim)));
    const float *cosine = cosine_.floats() + int64_t{token} * half;
    const float *sine = sine_.floats() + int64_t{token} * half;
    float *head =
        qkv_.floats() + int64_t{token} * (config_.heads + 2 * config_.kv_heads) * head_dim;

    for (int64_t h = 0; h < config_.heads; ++h, head += head_dim) {
        if (!weights.q_norm.empty()) {
            kernels_.rms_norm_head(head, weights.q_norm.data(), epsilon, head_dim);
        }
        kernels_.rope(head, cosine, sine, half);
        const int64_t row = (h / ratio * tokens + token) * ratio + h % ratio;
        kernels_.store_elements(head, query_scale, head_dim, padded,
                                queries_.data() + row * padded * element);
    }

    const ContextNode &node = batch.nodes[node_of_[token]];
    const int32_t place = batch.positions[token] - node.start;
    const int32_t page = batch.pages[node.page_begin + place / pages_.page_tokens()];
    const int32_t group = place % pages_.page_tokens() / kGroupTokens;
    const int32_t slot = place % kGroupTokens;
    for (int32_t h = 0; h < config_.kv_heads; ++h, head += head_dim) {
        if (!weights.k_norm.empty()) {
            kernels_.rms_norm_head(head, weights.k_norm.data(), epsilon, head_dim);
        }
        kernels_.rope(head, cosine, sine, half);
        kernels_.store_key(head, head_dim, padded, slot, pages_.keys(layer, page, h, group));
    }
    for (int32_t h = 0; h < config_.kv_heads; ++h, head += head_dim) {
        std::byte *values = pages_.values(layer, page, h, group);
        kernels_.store_value(head, head_dim, padded, slot, values);
        if (slot != 0) continue;
        // The places of the group that have no token yet: a page's last owner may have left a NaN
        // there, which a weight of zero would not silence.
        for (int32_t empty = node.length - place; empty < kGroupTokens; ++empty) {
            kernels_.store_value(zeros_.data(), head_dim, padded, empty, values);
        }
    }
}

void Forward::write_heads(const TokenBatch &batch, int32_t layer) {
    const int64_t tokens = static_cast<int64_t>(batch.tokens.size());
    pool_->parallel_for(task_count(tokens), [&](int64_t task, int32_t) {
        const int64_t last = std::min(tokens, (task + 1) * kTokensOfTask);
        for (int64_t t = task * kTokensOfTask; t < last; ++t) {
            write_token(batch, layer, static_cast<int32_t>(t));
        }
    });
}

// residual += x W^T + bias
Status Forward::add_product(const PackedMatrix &matrix, const std::byte *x, int64_t rows,
                            const Vector &bias) {
    return linear_->run(matrix, x, rows, [&](const Linear::Tile &tile) {
        for (int64_t r = 0; r < tile.rows; ++r) {
            kernels_.add_bias(tile.data + r * tile.width, bias_at(bias, tile.column),
                              static_cast<int32_t>(tile.width),
                              residual_.floats() + (tile.row + r) * config_.hidden + tile.column);
        }
    });
}

Status Forward::run_layer(const TokenBatch &batch, int32_t layer,
                          const std::vector<int32_t> &wanted) {
    const PackedLayer &weights = weights_.layers[layer];
    const int64_t tokens = static_cast<int64_t>(batch.tokens.size());
    const int64_t hidden = config_.hidden;
    const int64_t element = dtype_bytes(kernels_.element);
    Laps laps;

    norm(residual_.floats(), weights.input_norm, tokens, input_.data());
    laps.lap(&seconds_.norm);
    RETURN_IF_ERROR(linear_->run(weights.qkv, input_.data(), tokens, [&](const Linear::Tile &tile) {
        for (int64_t r = 0; r < tile.rows; ++r) {
            kernels_.copy_bias(tile.data + r * tile.width, bias_at(weights.qkv_bias, tile.column),
                               static_cast<int32_t>(tile.width),
                               qkv_.floats() + (tile.row + r) * weights.qkv.rows + tile.column);
        }
    }));
    laps.lap(&seconds_.qkv);
    write_heads(batch, layer);
    laps.lap(&seconds_.rope);

    const bool last = layer + 1 == config_.layers;
    const int64_t rows = last ? wanted_rows_ : tokens;
    if (rows == 0) return {};
    const Worklist &list = last ? last_ : config_.window(layer) == 0 ? all_ : windowed_;
    RETURN_IF_ERROR(attention_->run(batch, list, layer, queries_.data(), attended_.data()));
    if (last) {
        // Ascending, so that a row is never overwritten before it has moved.
        for (int64_t r = 0; r < rows; ++r) {
            if (wanted[r] == r) continue;
            std::memcpy(residual_.floats() + r * hidden, residual_.floats() + wanted[r] * hidden,
                        static_cast<size_t>(hidden) * sizeof(float));
        }
    }
    laps.lap(&seconds_.attention);
    RETURN_IF_ERROR(add_product(weights.o, attended_.data(), rows, weights.o_bias));
    laps.lap(&seconds_.output);
    norm(residual_.floats(), weights.post_attention_norm, rows, input_.data());
    laps.lap(&seconds_.norm);
    RETURN_IF_ERROR(
        linear_->run(weights.gate_up, input_.data(), rows, [&](const Linear::Tile &tile) {
            const int64_t half = tile.width / 2;
            const int64_t column = tile.column / 2;
            for (int64_t r = 0; r < tile.rows; ++r) {
                const float *gate = tile.data + r * tile.width;
                kernels_.silu_product(
                    gate, gate + half, bias_at(weights.gate_bias, column),
                    bias_at(weights.up_bias, column), static_cast<int32_t>(half),
                    activated_.data() + ((tile.row + r) * config_.intermediate + column) * element);
            }
        }));
    laps.lap(&seconds_.gate_up);
    RETURN_IF_ERROR(add_product(weights.down, activated_.data(), rows, weights.down_bias));
    laps.lap(&seconds_.down);
    return {};
}

Status Forward::run(const TokenBatch &batch, const std::vector<int32_t> &wanted) {
    if (static_cast<int64_t>(batch.tokens.size()) > step_tokens_) {
        return error(BATCHLLM_ERROR_INTERNAL, "cpu backend: a batch of %zu tokens, at most %lld",
                     batch.tokens.size(), static_cast<long long>(step_tokens_));
    }
    Laps laps;
    prepare(batch, wanted);
    laps.lap(&seconds_.prepare);
    for (int32_t layer = 0; layer < config_.layers; ++layer) {
        RETURN_IF_ERROR(run_layer(batch, layer, wanted));
    }
    Laps final_laps;
    norm(residual_.floats(), weights_.final_norm, wanted_rows_, input_.data());
    final_laps.lap(&seconds_.norm);
    return {};
}

Status Forward::logits(int64_t first, int64_t count, float *out) {
    Laps laps;
    const std::byte *x = input_.data() + first * config_.hidden * dtype_bytes(kernels_.element);
    RETURN_IF_ERROR(linear_->run(weights_.lm_head, x, count, [&](const Linear::Tile &tile) {
        for (int64_t r = 0; r < tile.rows; ++r) {
            std::memcpy(out + (tile.row + r) * config_.vocabulary + tile.column,
                        tile.data + r * tile.width, static_cast<size_t>(tile.width) * 4);
        }
    }));
    laps.lap(&seconds_.head);
    return {};
}

} // namespace batchllm::cpu
