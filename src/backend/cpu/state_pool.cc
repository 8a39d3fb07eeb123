#include "backend/cpu/state_pool.h"

namespace batchllm::cpu {

// Whole cache lines.
int64_t StatePool::layer_floats(const DeltaNet &delta) {
    if (!delta) return 0;
    const int64_t floats =
        matrix_floats(delta) * delta.value_heads + (delta.width - 1) * delta.channels();
    return (floats + kLanes - 1) / kLanes * kLanes;
}

int64_t StatePool::slot_bytes(const Model &model) {
    int64_t floats = 0;
    for (const Layer &layer : model.layers) floats += layer_floats(layer.delta);
    return floats * static_cast<int64_t>(sizeof(float));
}

Result<StatePool> StatePool::create(const Model &model, int64_t slots) {
    StatePool pool;
    for (const Layer &layer : model.layers) {
        pool.begin_.push_back(pool.slot_floats_);
        pool.slot_floats_ += layer_floats(layer.delta);
    }
    ASSIGN_OR_RETURN(pool.data_, Buffer::create(slots * slot_bytes(model), "state slots"));
    return pool;
}

} // namespace batchllm::cpu
