// A model -> the part of it that one of several devices computes: tensor parallelism (Megatron-LM, arXiv 1909.08053).
//
// A part is a Model, whose tensors are views of the whole model's bytes: fewer heads, narrower feed-forwards, a head
// with fewer tokens. So a backend computes it as it computes any model, and adds over all ranks
//     what the last matrix of a mixer makes (o)                          before after_attention
//     what a layer feeds: a feed-forward's or the experts' down          before after_feed_forward,
//         and before Experts::after and SharedExperts::after if they are there
//     the mean of squares in norms over all heads: Attention::norm_whole, and Mamba2 if norm_ranks > 1
// An exchange leaves the same bits on all ranks. So everything else is computed by each of them, with equal results: the
// residual stream, norms, routers, layer inputs, latents, what Kimi's delta nets make their gates of, and keys and values of
// heads that several ranks share.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "model/adapter.h"
#include "model/model.h"

namespace batchllm {

inline constexpr int32_t most_ranks = 64;

// Heads are divided evenly; where there are fewer with keys than ranks, each rank has a copy of one. Feed-forwards, and each
// of a layer's experts, are divided by columns, at the edges of quantised blocks where there are as many. The embedding
// is whole. Biases that are added to a sum are rank 0's. UNSUPPORTED, with the layer's number, if heads cannot be divided.
// The part borrows nothing from `model`.
Result<std::unique_ptr<Model>> part_of(const Model &model, int32_t rank, int32_t ranks);

// Of an adapter of `model`, what changes its part. Borrows the adapter's bytes.
Adapter part_of(const Adapter &adapter, const Model &model, const Model &part);

} // namespace batchllm
