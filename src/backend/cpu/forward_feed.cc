// A layer's feed-forward: its own, or its experts and their shared expert.
#include <algorithm>
#include <cmath>

#include "backend/cpu/feed_forward.h"
#include "backend/cpu/forward.h"
#include "backend/cpu/forward_tasks.h"

namespace batchllm::cpu {

// delta = the shared expert of each row, times its gate; zero if there is no shared expert.
Status Forward::shared_expert(size_t index, int64_t rows) {
    const Layer &layer = model_.layers[index];
    const PackedLayer &weights = weights_.layers[index];
    const int64_t hidden = model_.hidden;
    if (layer.feed_forward.width == 0) {
        std::fill_n(delta_.floats(), rows * hidden, 0.0f);
        return {};
    }
    RETURN_IF_ERROR(activate(layer.feed_forward, weights.feed_forward, kernels_, input_.data(),
                             rows, linear_.get(), activated_.data()));
    RETURN_IF_ERROR(product(weights.feed_forward.down, activated_.data(), rows,
                            weights.feed_forward.down_bias, kernels_.copy_bias, delta_.floats()));
    if (!layer.shared_gate) return {};
    return linear_->run(weights.shared_gate, input_.data(), rows, [&](const Linear::Tile &tile) {
        for (int64_t r = 0; r < tile.rows; ++r) {
            const float gate = 1 / (1 + std::exp(-tile.data[r]));
            float *row = delta_.floats() + (tile.row + r) * hidden;
            for (int64_t i = 0; i < hidden; ++i) row[i] *= gate;
        }
    });
}

// Adds the output of the layer's feed-forward and experts for this input to the residual stream.
Status Forward::feed_forward(size_t index, int64_t rows) {
    const Layer &layer = model_.layers[index];
    const PackedLayer &weights = weights_.layers[index];
    Laps laps;
    if (layer.experts) {
        RETURN_IF_ERROR(shared_expert(index, rows));
        RETURN_IF_ERROR(experts_->run(layer.experts, weights.experts, input_.data(), rows,
                                      model_.hidden, delta_.floats()));
        add_delta(weights.after_feed_forward, layer.residual_scale, rows);
        laps.lap(&seconds_.experts);
        return {};
    }
    RETURN_IF_ERROR(activate(layer.feed_forward, weights.feed_forward, kernels_, input_.data(),
                             rows, linear_.get(), activated_.data()));
    laps.lap(&seconds_.gate_up);
    RETURN_IF_ERROR(add_product(weights.feed_forward.down, activated_.data(), rows,
                                weights.feed_forward.down_bias, weights.after_feed_forward,
                                layer.residual_scale));
    laps.lap(&seconds_.down);
    return {};
}

} // namespace batchllm::cpu
