// The states of delta nets: one slot for a context node, with the states of all layers.
//
//   [slot][layer] { S [value_head][key_dim][padded value_dim], inputs [width - 1][channels] } float
//
// The padding is zero; the inputs are those of the convolution's last tokens, oldest first. Address
// space is reserved at once, and memory is used as slots are first written.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/cpu/buffer.h"
#include "backend/cpu/kernels.h"
#include "base/status.h"
#include "model/model.h"

namespace batchllm::cpu {

class StatePool {
  public:
    static int64_t slot_bytes(const Model &model); // 0: the model has no delta nets
    static Result<StatePool> create(const Model &model, int64_t slots);

    // A layer's part of a slot.
    float *matrices(int32_t slot, size_t layer) const {
        return data_.floats() + slot * slot_floats_ + begin_[layer];
    }
    float *inputs(int32_t slot, size_t layer, const DeltaNet &delta) const {
        return matrices(slot, layer) + matrix_floats(delta) * delta.value_heads;
    }
    // Of one value head.
    static int64_t matrix_floats(const DeltaNet &delta) {
        return int64_t{delta.key_dim} * padded_head_dim(delta.value_dim);
    }

  private:
    static int64_t layer_floats(const DeltaNet &delta);

    Buffer data_;
    int64_t slot_floats_ = 0;
    std::vector<int64_t> begin_; // [layers]
};

} // namespace batchllm::cpu
