// The states of linear attention and of short convolutions. A context node has one slot, with the
// states of all layers:
//
//   [slot][layer] { S [value_head][key_dim][padded value_dim] f32 or bf16, inputs [width - 1][channels] float }
//
// A short convolution has only inputs. The padding is zero. The inputs are those of the last
// tokens, oldest first. Address space is reserved at once; memory is used when slots are first
// written.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/cpu/buffer.h"
#include "backend/cpu/kernels.h"
#include "base/dtype.h"
#include "base/status.h"
#include "model/model.h"

namespace batchllm::cpu {

class StatePool {
  public:
    // type: of S. Returns 0 if no layer has a state.
    static int64_t slot_bytes(const Model &model, DType type);
    static Result<StatePool> create(const Model &model, DType type, int64_t slots);

    DType type() const { return type_; }
    // S of one value head in a layer.
    std::byte *matrix(int32_t slot, size_t layer, const LinearAttention &attention,
                      int64_t head) const {
        return layer_of(slot, layer) + head * matrix_numbers(attention) * dtype_bytes(type_);
    }
    float *inputs(int32_t slot, size_t layer, const LinearAttention &attention) const {
        return reinterpret_cast<float *>(matrix(slot, layer, attention, attention.value_heads));
    }
    // The inputs in a layer.
    float *inputs(int32_t slot, size_t layer) const {
        return reinterpret_cast<float *>(layer_of(slot, layer));
    }
    // How many numbers S of one value head has.
    static int64_t matrix_numbers(const LinearAttention &attention) {
        return int64_t{attention.key_dim} * padded_head_dim(attention.value_dim);
    }

  private:
    static int64_t layer_bytes(const Layer &layer, DType type);
    std::byte *layer_of(int32_t slot, size_t layer) const {
        return data_.data() + slot * slot_bytes_ + begin_[layer];
    }

    Buffer data_;
    DType type_ = DType::f32;
    int64_t slot_bytes_ = 0;
    std::vector<int64_t> begin_; // [layers]
};

} // namespace batchllm::cpu
