// A tower's mapped tensors -> the device, in the compute type; vectors in f32, but biases of products that add them in the type
// of what these write. Queries, keys and values are one matrix without padding; widths of feed-forwards and of patches are padded
// to what products take, with zeros.
#pragma once

#include <cstdint>
#include <vector>

#include "device/device.h"
#include "elementwise/norm.h"
#include "linear/linear.h"
#include "model/tower.h"
#include "step/weights.h"

namespace batchllm::cuda {

struct TowerFeed {
    Matrix
        up; // [width, columns], or gate, then up: [2 width, columns]. With gelu its product ends with the activation.
    Matrix down;                    // [rows, width]
    const float *up_bias = nullptr; // where up has none
    bool gated = false;
    Activation activation = Activation::silu;
    int64_t width = 0; // padded

    explicit operator bool() const { return width > 0; }
};

struct TowerLayer {
    DeviceNorm before_attention, before_feed_forward; // [hidden]
    Matrix qkv;                                       // [3 heads * head_dim, hidden]
    const float *qk_bias = nullptr;                   // [2 heads * head_dim]
    Matrix o; // [hidden, heads * head_dim]; its bias has that of values (output_bias())
    TowerFeed feed;
};

struct TowerMerger {
    DeviceNorm norm;        // [hidden]
    DeviceNorm merged_norm; // [merged_width()]
    Matrix projection;      // [rows, merged_width()], or none
    const float *projection_bias = nullptr;
    TowerFeed feed; // or none
};

struct TowerWeights {
    Matrix patch; // [hidden, padded Tower::values()]
    const float *patch_bias = nullptr;
    const float *positions = nullptr; // [side * side, hidden]
    DeviceNorm before, after;         // [hidden]
    std::vector<TowerLayer> layers;
    std::vector<TowerMerger> mergers; // [parts]
    DeviceMemory memory;              // all of it
};

// Of options, element, random, seed and threads count. stream: the residual stream's type.
Result<TowerWeights> load_tower_weights(const Tower &tower, const LoadOptions &options,
                                        DType stream);

} // namespace batchllm::cuda
