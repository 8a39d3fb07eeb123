// A model's weights -> the scales of its keys and values in e4m3. A key or value element is the
// stored element times the scale of its head.
//
// If the checkpoint has scales, they are used unchanged. Otherwise a head's scale is derived from
// its weights. If the input has a root mean square of 1 and independent elements, an element of the
// head has a root mean square of
//     sqrt(mean over the head's rows i of the sum over columns j of (w_ij * norm_weight_j)^2)
// plus the largest bias. If the head has a norm of its own, it is that of the norm's weight. The
// scale is the power of two that brings this value into [1, 2). e4m3 can then hold numbers up to
// 224 times as large, and keeps all its bits down to 1/64. Some channels of real inputs are much
// larger, and it matters most that none of their keys is clipped. Scaling by a power of two does
// not round.
//
// A latent and the turned part behind it share a scale, that of the larger one.
#pragma once

#include <cstdint>
#include <vector>

#include "model/model.h"

namespace batchllm {

struct KvScales {
    // [kv_heads]; empty in a layer without keys and values. Of latents, which have no heads: one, the same in both.
    std::vector<float> k, v;
};

// [layers]. A layer that attends to an earlier layer's keys and values has that layer's scales.
std::vector<KvScales> kv_scales(const Model &model, int32_t threads);

} // namespace batchllm
