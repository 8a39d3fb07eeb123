#include "backend/cpu/latent_layers.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/feed_forward.h"
#include "backend/cpu/forward_tasks.h"

namespace batchllm::cpu {

Status LatentLayers::allocate(const Model &model, int64_t step_tokens) {
    int64_t first = 0, q_rank = 0, queries = 0, head = 0, made = 0;
    for (const Layer &layer : model.layers) {
        const Attention *a = layer.attention();
        if (a == nullptr || !a->latent) continue;
        const Latent &latent = a->latent;
        first = std::max(first, a->first_q().rows() + latent.down.rows());
        q_rank = std::max(q_rank, latent.q_down.rows());
        if (latent.q_down) queries = std::max(queries, a->q.rows());
        head = std::max<int64_t>(head, std::max(latent.plain, latent.rank));
        made = std::max(made, int64_t{a->heads} * latent.rank);
    }
    if (first == 0) return {};
    const int64_t rows = Linear::rounded_rows(step_tokens);
    const int64_t element = dtype_bytes(kernels_.element);
    const char *what = "a step's buffers of latents";
    ASSIGN_OR_RETURN(first_, Buffer::create(step_tokens * first * 4, what));
    if (q_rank > 0) {
        ASSIGN_OR_RETURN(normed_, Buffer::create(rows * q_rank * element, what));
        ASSIGN_OR_RETURN(of_normed_, Buffer::create(step_tokens * queries * 4, what));
    }
    ASSIGN_OR_RETURN(head_, Buffer::create(rows * head * element, what));
    ASSIGN_OR_RETURN(made_, Buffer::create(step_tokens * made * element, what));
    return {};
}

// Stores x W^T + bias in `to`, [rows, rows of the matrix].
Status LatentLayers::product(const PackedMatrix &matrix, const std::byte *x, int64_t rows,
                             const Vector &bias, float *to) {
    return linear_->run(matrix, x, rows, [&](const Linear::Tile &tile) {
        for (int64_t r = 0; r < tile.rows; ++r) {
            kernels_.copy_bias(tile.data + r * tile.width, bias_at(bias, tile.column),
                               static_cast<int32_t>(tile.width),
                               to + (tile.row + r) * matrix.rows + tile.column);
        }
    });
}

// Stores head_ times W^T as elements, the rows `stride` elements apart from `to` on.
Status LatentLayers::product_of_head(const PackedMatrix &matrix, int64_t rows, int64_t stride,
                                     std::byte *to) {
    const int64_t element = dtype_bytes(kernels_.element);
    return linear_->run(matrix, head_.data(), rows, [&](const Linear::Tile &tile) {
        const auto width = static_cast<int32_t>(tile.width);
        for (int64_t r = 0; r < tile.rows; ++r) {
            kernels_.store_elements(tile.data + r * tile.width, 1, width, width,
                                    to + ((tile.row + r) * stride + tile.column) * element);
        }
    });
}

Status LatentLayers::project(const Attention &attention, const PackedLatent &weights,
                             const std::byte *x, int64_t tokens, const std::vector<float> &scales,
                             std::byte *queries) {
    const Latent &latent = attention.latent;
    const int64_t element = dtype_bytes(kernels_.element);
    RETURN_IF_ERROR(product(weights.first, x, tokens, weights.first_bias, first_.floats()));
    queries_ = first_.floats();
    first_stride_ = query_stride_ = weights.first.rows;
    latents_ = first_.floats() + weights.first.rows - latent.down.rows();
    if (latent.q_down) {
        const auto q_rank = static_cast<int32_t>(latent.q_down.rows());
        pool_->parallel_for(task_count(tokens), [&](int64_t task, int32_t) {
            const int64_t last = std::min(tokens, (task + 1) * kTokensOfTask);
            for (int64_t t = task * kTokensOfTask; t < last; ++t) {
                kernels_.rms_norm(first_.floats() + t * first_stride_, weights.q_norm.weight.data(),
                                  weights.q_norm.epsilon, q_rank,
                                  normed_.data() + t * q_rank * element);
            }
        });
        RETURN_IF_ERROR(
            product(weights.q, normed_.data(), tokens, weights.q_bias, of_normed_.floats()));
        queries_ = of_normed_.floats();
        query_stride_ = weights.q.rows;
    }
    const int64_t padded = padded_head_dim(attention.head_dim);
    for (int64_t h = 0; h < attention.heads; ++h) {
        pool_->parallel_for(task_count(tokens), [&](int64_t task, int32_t) {
            const int64_t last = std::min(tokens, (task + 1) * kTokensOfTask);
            for (int64_t t = task * kTokensOfTask; t < last; ++t) {
                kernels_.store_elements(query(t) + h * latent.query_dim(),
                                        scales[static_cast<size_t>(t)], latent.plain, latent.plain,
                                        head_.data() + t * latent.plain * element);
            }
        });
        RETURN_IF_ERROR(product_of_head(weights.keys[static_cast<size_t>(h)], tokens,
                                        attention.heads * padded, queries + h * padded * element));
    }
    return {};
}

Status LatentLayers::results(const Attention &attention, const PackedLatent &weights, int64_t rows,
                             std::byte *out) {
    const Latent &latent = attention.latent;
    const int64_t element = dtype_bytes(kernels_.element);
    const int64_t head_bytes = latent.rank * element;
    for (int64_t h = 0; h < attention.heads; ++h) {
        pool_->parallel_for(task_count(rows), [&](int64_t task, int32_t) {
            const int64_t last = std::min(rows, (task + 1) * kTokensOfTask);
            for (int64_t r = task * kTokensOfTask; r < last; ++r) {
                std::memcpy(head_.data() + r * head_bytes,
                            made_.data() + (r * attention.heads + h) * head_bytes,
                            static_cast<size_t>(head_bytes));
            }
        });
        RETURN_IF_ERROR(product_of_head(weights.values[static_cast<size_t>(h)], rows,
                                        attention.result_size(),
                                        out + h * latent.value_dim * element));
    }
    return {};
}

} // namespace batchllm::cpu
