#include "backend/cpu/feed_forward.h"

namespace batchllm::cpu {

Status activate(const FeedForward &shape, const PackedFeedForward &weights, const Kernels &kernels,
                const std::byte *x, int64_t rows, Linear *linear, std::byte *out) {
    const int64_t element = dtype_bytes(kernels.element);
    const auto activation = kernels.activate[static_cast<size_t>(shape.activation)];
    const int64_t parts = shape.gate ? 2 : 1; // in a slice: gate and up
    const Vector &first_bias = shape.gate ? weights.gate_bias : weights.up_bias;
    return linear->run(weights.gate_up, x, rows, [&](const Linear::Tile &tile) {
        const int64_t width = tile.width / parts;
        const int64_t column = tile.column / parts;
        for (int64_t r = 0; r < tile.rows; ++r) {
            const float *first = tile.data + r * tile.width;
            activation(first, shape.gate ? first + width : nullptr, bias_at(first_bias, column),
                       shape.gate ? bias_at(weights.up_bias, column) : nullptr, weights.curve,
                       static_cast<int32_t>(width),
                       out + ((tile.row + r) * shape.width + column) * element);
        }
    });
}

} // namespace batchllm::cpu
