// The second embedding of some models, with a part for each layer.
#include <algorithm>

#include "backend/cpu/forward.h"
#include "backend/cpu/forward_tasks.h"

namespace batchllm::cpu {

// The parts of all layers for each token, computed from the residual stream before the first layer.
Status Forward::make_layer_inputs(const TokenBatch &batch) {
    const LayerInputs &inputs = model_.layer_inputs;
    const auto tokens = static_cast<int64_t>(batch.tokens.size());
    const int64_t all = inputs.projection.rows();
    norm({}, residual_.floats(), tokens, input_.data());
    RETURN_IF_ERROR(linear_->run(
        weights_.input_projection, input_.data(), tokens, [&](const Linear::Tile &tile) {
            for (int64_t r = 0; r < tile.rows; ++r) {
                float *to = layer_inputs_.floats() + (tile.row + r) * all + tile.column;
                const auto width = static_cast<int32_t>(tile.width);
                kernels_.copy_bias(tile.data + r * tile.width, nullptr, width, to);
                kernels_.cap(to, inputs.projection_scale, 0, width);
            }
        }));
    pool_->parallel_for(task_count(tokens), [&](int64_t task, int32_t) {
        std::vector<float> own(static_cast<size_t>(all)); // the token's
        const int64_t last = std::min(tokens, (task + 1) * kTokensOfTask);
        for (int64_t t = task * kTokensOfTask; t < last; ++t) {
            float *to = layer_inputs_.floats() + t * all;
            norm_heads(weights_.input_norm, false, to, static_cast<int32_t>(all / inputs.width),
                       inputs.width, inputs.width);
            read_row(inputs.embedding, batch.tokens[t], own.data());
            kernels_.add_scaled(own.data(), inputs.embedding_scale, static_cast<int32_t>(all), to);
            kernels_.cap(to, inputs.scale, 0, static_cast<int32_t>(all));
        }
    });
    return {};
}

// wanted: the tokens of the rows; null: all.
Status Forward::add_layer_input(size_t index, int64_t rows, const std::vector<int32_t> *wanted) {
    const LayerInputs &inputs = model_.layer_inputs;
    const InputBlock &block = model_.layers[index].input;
    const PackedLayer &weights = weights_.layers[index];
    const int64_t element = dtype_bytes(kernels_.element);
    const auto activate = kernels_.activate[static_cast<size_t>(block.activation)];
    const float *parts = layer_inputs_.floats() + static_cast<int64_t>(index) * inputs.width;
    norm({}, residual_.floats(), rows, input_.data());
    RETURN_IF_ERROR(
        linear_->run(weights.input_gate, input_.data(), rows, [&](const Linear::Tile &tile) {
            for (int64_t r = tile.row; r < tile.row + tile.rows; ++r) {
                const int64_t token = wanted == nullptr ? r : (*wanted)[r];
                activate(tile.data + (r - tile.row) * tile.width,
                         parts + token * inputs.projection.rows() + tile.column, nullptr, nullptr,
                         nullptr, static_cast<int32_t>(tile.width),
                         activated_.data() + (r * inputs.width + tile.column) * element);
            }
        }));
    return add_product(weights.input_down, activated_.data(), rows, {}, weights.after_input, 1);
}

void Forward::scale_residual(float scalar, int64_t rows) {
    if (scalar == 1) return;
    pool_->parallel_for(task_count(rows), [&](int64_t task, int32_t) {
        const int64_t last = std::min(rows, (task + 1) * kTokensOfTask);
        for (int64_t r = task * kTokensOfTask; r < last; ++r) {
            kernels_.cap(residual_.floats() + r * model_.hidden, scalar, 0, model_.hidden);
        }
    });
}

} // namespace batchllm::cpu
