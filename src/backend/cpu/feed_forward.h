// activation(gate(x)) * up(x), for a layer's own feed-forward and for experts.
#pragma once

#include "backend/cpu/kernels.h"
#include "backend/cpu/linear.h"
#include "backend/cpu/weights.h"

namespace batchllm::cpu {

// bias + column, or null if there is no bias.
inline const float *bias_at(const Vector &bias, int64_t column) {
    return bias.empty() ? nullptr : bias.data() + column;
}

// x: [rounded_rows(rows), hidden] elements; out: [rows, width] elements.
Status activate(const FeedForward &shape, const PackedFeedForward &weights, const Kernels &kernels,
                const std::byte *x, int64_t rows, Linear *linear, std::byte *out);

} // namespace batchllm::cpu
