#include "backend/cpu/state_pool.h"

#include "base/visit.h"

namespace batchllm::cpu {

// Rounded up to whole cache lines.
int64_t StatePool::layer_bytes(const Layer &layer, DType type) {
    constexpr int64_t line = kLanes * sizeof(float);
    constexpr int64_t number = sizeof(float);
    const int64_t bytes = std::visit(
        Visitor{
            [](const NoMixer &) { return int64_t{0}; },
            [](const Attention &) { return int64_t{0}; },
            [&](const LinearAttention &linear) {
                return matrix_numbers(linear) * linear.value_heads * dtype_bytes(type) +
                       (linear.width - 1) * linear.channels() * number;
            },
            [](const ShortConvolution &convolution) { return convolution.state_size() * number; }},
        layer.mixer);
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
