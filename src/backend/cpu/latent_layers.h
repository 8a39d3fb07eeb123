// Layers with latents: what lies between their input and attention, and between attention and the
// last product. The kernels of attention run them as one KV head (attention.h).
#pragma once

#include <cstdint>
#include <vector>

#include "backend/cpu/buffer.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/linear.h"
#include "backend/cpu/weights.h"
#include "base/thread_pool.h"

namespace batchllm::cpu {

class LatentLayers {
  public:
    // All are borrowed.
    LatentLayers(const Kernels &kernels, Linear *linear, ThreadPool *pool)
        : kernels_(kernels), linear_(linear), pool_(pool) {}

    // Allocates room for this many tokens in any layer of the model; nothing if no layer has
    // latents.
    Status allocate(const Model &model, int64_t step_tokens);

    // Computes all tokens' queries and latents, neither turned, and the queries' plain parts times
    // K^T, scaled, into `queries`: [tokens][heads][D] elements, of which it leaves the rest. x:
    // [rounded_rows(tokens), hidden] elements. scales: [tokens] of the queries.
    Status project(const Attention &attention, const PackedLatent &weights, const std::byte *x,
                   int64_t tokens, const std::vector<float> &scales, std::byte *queries);
    // Call after project. A token's query, [heads, query_dim()], and its latent before the norm,
    // [rank + turned].
    float *query(int64_t token) { return queries_ + token * query_stride_; }
    float *latent(int64_t token) { return latents_ + token * first_stride_; }

    // Where attention's results go: [rows][heads][rank] elements.
    std::byte *made() { return made_.data(); }
    // V of those -> [rows][heads][value_dim] elements.
    Status results(const Attention &attention, const PackedLatent &weights, int64_t rows,
                   std::byte *out);

  private:
    Status product(const PackedMatrix &matrix, const std::byte *x, int64_t rows, const Vector &bias,
                   float *to);
    Status product_of_head(const PackedMatrix &matrix, int64_t rows, int64_t stride, std::byte *to);

    const Kernels &kernels_;
    Linear *linear_;
    ThreadPool *pool_;

    // For the layer that is running.
    Buffer first_;                                  // [tokens, rows of the first product] float
    Buffer normed_;                                 // [rows, q_rank] elements
    Buffer of_normed_;                              // [tokens, heads * query_dim()] float
    Buffer head_;                                   // [rows, plain or rank] elements of one head
    Buffer made_;                                   // [tokens, heads * rank] elements
    float *queries_ = nullptr, *latents_ = nullptr; // in those
    int64_t query_stride_ = 0, first_stride_ = 0;
};

} // namespace batchllm::cpu
