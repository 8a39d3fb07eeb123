// A model's mapped tensors -> the device, in the compute type: Q, K and V one matrix, gate and up one;
// heads padded to what attention takes (64, 128 or 256), with zeros; vectors in f32.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "device/device.h"
#include "linear/linear.h"
#include "model/model.h"

namespace batchllm::cuda {

// head_dim rounded up to what attention takes.
int32_t padded_head_dim(int32_t head_dim);

struct DeviceNorm {
    NormKind kind = NormKind::none;
    const float *weight = nullptr; // [length] with the offset added; null: ones
    const float *bias = nullptr;   // [length] or null
    float epsilon = 0;

    explicit operator bool() const { return kind != NormKind::none; }
};

struct DeviceLayer {
    DeviceNorm before_attention, after_attention;       // [hidden]
    DeviceNorm before_feed_forward, after_feed_forward; // [hidden]
    DeviceNorm q_norm, k_norm;       // [padded], or of the whole projection [heads * padded]
    const float *qkv_bias = nullptr; // [(heads + 2 kv_heads) * padded], or null
    const float *o_bias = nullptr, *down_bias = nullptr; // [hidden]
    const float *gate_up_bias = nullptr;                 // [gate_up.rows]
    Matrix qkv;                                          // [(heads + 2 kv_heads) * padded, hidden]
    Matrix o;                                            // [hidden, heads * padded]
    Matrix gate_up;                                      // [2 width, hidden]
    Matrix down;                                         // [hidden, width]
};

struct DeviceWeights {
    const void *embedding = nullptr; // [vocabulary, hidden]
    Matrix head;                     // [padded_vocabulary, hidden]: a multiple of 16 rows
    DeviceNorm final_norm;           // [hidden]
    std::vector<DeviceLayer> layers;
    DeviceMemory memory; // all of it
};

// random: the tensors' shapes count, their bytes are not read; weights as of a fresh model
// (normal, deviation 0.02; norms 1; biases 0).
Result<DeviceWeights> load_weights(const Model &model, DType element, bool random, uint64_t seed,
                                   int32_t threads);

} // namespace batchllm::cuda
