#include "backend/cpu/state_pool.h"

namespace batchllm::cpu {

// Rounded up to whole cache lines.
int64_t StatePool::layer_bytes(const Layer &layer, DType type) {
    constexpr int64_t line = kLanes * sizeof(float);
    constexpr int64_t number = sizeof(float);
    int64_t bytes = 0;
    if (const LinearAttention &attention = layer.linear_attention; attention) {
        bytes = matrix_numbers(attention) * attention.value_heads * dtype_bytes(type) +
                (attention.width - 1) * attention.channels() * number;
    } else if (layer.convolution) {
        bytes = layer.convolution.state_size() * number;
    }
    return (bytes + line - 1) / line * line;
}

int64_t StatePool::slot_bytes(const Model &model, DType type) {
    int64_t bytes = 0;
    for (const Layer &layer : model.layers) bytes += layer_bytes(layer, type);
    return bytes;
}

Result<StatePool> StatePool::create(const Model &model, DType type, int64_t slots) {
    StatePool pool;
    pool.type_ = type;
    for (const Layer &layer : model.layers) {
        pool.begin_.push_back(pool.slot_bytes_);
        pool.slot_bytes_ += layer_bytes(layer, type);
    }
    ASSIGN_OR_RETURN(pool.data_, Buffer::create(slots * pool.slot_bytes_, "state slots"));
    return pool;
}

} // namespace batchllm::cpu
