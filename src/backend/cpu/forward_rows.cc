// What each token's row goes through separately: embedding and angles, head norms, rotation.
#include <algorithm>
#include <cmath>

#include "backend/cpu/forward.h"
#include "backend/cpu/forward_tasks.h"

namespace batchllm::cpu {

// What the token's adapter adds to its embedding.
void Forward::add_embedding(const TokenBatch &batch, int64_t token, float *x) const {
    const PackedLowRank &low = adapter_of_[token]->embedding;
    if (low.rank == 0) return;
    const auto vocabulary = static_cast<size_t>(model_.embedding.rows);
    std::vector<float> column(static_cast<size_t>(low.rank));
    for (size_t r = 0; r < column.size(); ++r) {
        column[r] = low.a[r * vocabulary + static_cast<size_t>(batch.tokens[token])];
    }
    kernels_.add_rows(column.data(), low.b.get(), low.rows, model_.hidden, low.rank, x);
}

namespace {

int32_t on_axis(const RopePosition &position, uint8_t axis) {
    return axis == 0 ? position.time : axis == 1 ? position.row : position.column;
}

} // namespace

// A token's embedding, or what stands for it in a picture, and its angles.
void Forward::embed(const TokenBatch &batch, int64_t token) {
    float *x = residual_.floats() + token * model_.hidden;
    if (const float *picture = picture_row(token, 0)) {
        std::copy_n(picture, model_.hidden, x);
    } else {
        read_row(model_.embedding, batch.tokens[token], x);
        if (!adapter_of_.empty() && adapter_of_[token] != nullptr) add_embedding(batch, token, x);
        if (model_.embedding_scale != 1) {
            for (int64_t i = 0; i < model_.hidden; ++i) x[i] *= model_.embedding_scale;
        }
    }
    float *cosine = cosine_.floats() + token * angles_;
    float *sine = sine_.floats() + token * angles_;
    for (const Rope &rope : model_.ropes) {
        const bool axes = !rope.axes.empty() && !batch.rope_positions.empty();
        for (size_t i = 0; i < rope.frequencies.size(); ++i) {
            const int32_t position =
                axes ? on_axis(batch.rope_positions[token], rope.axes[i]) : batch.positions[token];
            // In float, as the reference models compute it.
            const float angle = static_cast<float>(position) * rope.frequencies[i];
            *cosine++ = std::cos(angle) * rope.scale;
            *sine++ = std::sin(angle) * rope.scale;
        }
    }
}

// shared: what other ranks add to the mean square.
void Forward::norm_in_place(const PackedNorm &norm, float *x, int32_t n, float shared) const {
    if (norm.kind == NormKind::rms) {
        kernels_.rms_norm_head(x, norm.weight.data(), norm.epsilon + shared, n);
    } else if (norm.kind == NormKind::layer) {
        kernels_.layer_norm_head(x, norm.weight.data(), norm.bias.data(), norm.epsilon, n);
    }
}

// [rows, hidden], in place.
void Forward::norm_rows(const PackedNorm &norm, int64_t rows, float *x) {
    const int32_t hidden = model_.hidden;
    pool_->parallel_for(task_count(rows), [&](int64_t task, int32_t) {
        const int64_t last = std::min(rows, (task + 1) * kTokensOfTask);
        for (int64_t r = task * kTokensOfTask; r < last; ++r) {
            norm_in_place(norm, x + r * hidden, hidden);
        }
    });
}

// `count` heads of queries or keys, `stride` apart.
void Forward::norm_heads(const PackedNorm &norm, bool whole, float *heads, int32_t count,
                         int32_t head_dim, int32_t stride, float shared) const {
    if (!norm) return;
    if (whole) return norm_in_place(norm, heads, count * head_dim, shared);
    for (int32_t h = 0; h < count; ++h) norm_in_place(norm, heads + h * stride, head_dim);
}

// Sets shared_norms_ for queries and keys that are in place.
Status Forward::share_norms(const Attention &attention, const PackedAttention &weights,
                            int64_t tokens) {
    shared_norms_.resize(static_cast<size_t>(2 * tokens));
    pool_->parallel_for(task_count(tokens), [&](int64_t task, int32_t) {
        const int64_t last = std::min(tokens, (task + 1) * kTokensOfTask);
        for (int64_t t = task * kTokensOfTask; t < last; ++t) {
            const float *queries = qkv_.floats() + t * weights.qkv.rows;
            shared_norms_[static_cast<size_t>(t)] = mean_square(queries, attention.q_size());
            if (attention.kv_layer >= 0) continue;
            shared_norms_[static_cast<size_t>(tokens + t)] =
                mean_square(queries + attention.q.rows(), attention.kv_size());
        }
    });
    return share_squares(rank_, rank_.exchange->ranks(), shared_norms_);
}

// Multiplies the heads' results by their tokens' gates. wanted: the tokens of the rows; null: all.
void Forward::gate_heads(const Attention &attention, const PackedAttention &weights,
                         const std::vector<int32_t> *wanted, int64_t rows) {
    const int32_t head_dim = attention.head_dim;
    Tensor head; // in a row
    head.dtype = kernels_.element;
    head.rows = 1;
    head.columns = head_dim;
    const int64_t head_bytes = head.bytes();
    // Of the first head in a token's row of the product, and from one to the next.
    const int64_t first = attention.gate ? weights.qkv.rows - attention.gate.rows() : head_dim;
    const int64_t stride = attention.gate ? head_dim : 2 * head_dim;
    pool_->parallel_for(task_count(rows), [&](int64_t task, int32_t) {
        std::vector<float> values(static_cast<size_t>(head_dim));
        Tensor from = head;
        const int64_t last = std::min(rows, (task + 1) * kTokensOfTask);
        for (int64_t r = task * kTokensOfTask; r < last; ++r) {
            const int64_t token = wanted == nullptr ? r : (*wanted)[r];
            const float *gate = qkv_.floats() + token * weights.qkv.rows + first;
            for (int64_t h = 0; h < attention.heads; ++h, gate += stride) {
                std::byte *at = attended_.data() + (r * attention.heads + h) * head_bytes;
                from.data = at;
                read_row(from, 0, values.data());
                kernels_.scale_sigmoid(gate, head_dim, values.data());
                kernels_.store_elements(values.data(), 1, head_dim, head_dim, at);
            }
        }
    });
}

// Rotates a head by its token's angles.
void Forward::turn(const Attention &attention, int32_t token, float *head) const {
    if (attention.rope < 0) return;
    const Rope &rope = model_.ropes[attention.rope];
    const int64_t begin = token * angles_ + angles_begin_[attention.rope];
    (rope.pairs ? kernels_.rope_pairs : kernels_.rope)(head, cosine_.floats() + begin,
                                                       sine_.floats() + begin, rope.dims() / 2);
}

} // namespace batchllm::cpu
