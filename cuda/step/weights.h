// A model's mapped tensors -> the device, in the compute type, or layers' matrices in e4m3 with scales: Q, K and V one matrix, gate and up one;
// heads padded to what attention takes (64, 128, 256 or 512), with zeros; vectors in f32. Biases that are added
// to the residual stream or to logits have its scale in them, weights of norms their offset.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "backend/gpu/scaled_fit.h"
#include "base/status.h"
#include "device/device.h"
#include "elementwise/norm.h"
#include "linear/linear.h"
#include "model/model.h"

namespace batchllm::cuda {

// Of all of a layer's experts, as experts/grouped.h has them.
struct DeviceExperts {
    Matrix router;                         // [experts, and one more for the shared expert's gate;
                                           // a multiple of 16 rows, hidden]
    const float *router_bias = nullptr;    // [experts], or null
    const float *correction = nullptr;     // [experts], or null
    const float *expert_scale = nullptr;   // [experts], or null
    DeviceNorm router_norm, before, after; // [hidden]
    const void *gate_up = nullptr;         // [experts][2 width, hidden], gate and up taking turns;
                                           // or without a gate [width, hidden]
    const void *down = nullptr;            // [experts][hidden, width]
    std::optional<Packing> gate_up_packing = {}, down_packing = {}; // of those in four bits
    // Where both are in e4m3, as GroupedScales has them.
    Scaling gate_up_scaling = Scaling::none, down_scaling = Scaling::none;
    const float *gate_up_scales = nullptr, *down_scales = nullptr;
    const float *gate_up_bias = nullptr; // [experts, gate_up's rows], or null
    const float *down_bias = nullptr;    // [experts, hidden], or null

    bool in_e4m3() const { return gate_up_scaling != Scaling::none; }

    explicit operator bool() const { return gate_up != nullptr; }
};

// Of attention, beside its matrices: qkv is [(heads + 2 kv_heads) * padded, hidden], or without keys and values of its own
// [heads * padded, hidden]; behind them the heads' output gates, where it has any. o is [hidden, heads * padded].
struct DeviceAttention {
    DeviceNorm q_norm, k_norm;    // [padded], or of the whole projection [heads * padded]
    DeviceNorm v_norm;            // [padded]
    const float *sinks = nullptr; // [heads], or null
};

// Of attention over latents, beside its matrices: qkv is what queries begin with (Attention::q, or Latent::q_down), then
// Latent::down, a multiple of 16 rows; o [hidden, heads * value_dim].
struct DeviceLatent {
    DeviceNorm q_norm, norm;      // [q_rank], [rank]
    Matrix q;                     // Attention::q, of q_down's results, or none
    const void *keys = nullptr;   // [heads][rank, plain]: K^T
    const void *values = nullptr; // [heads][value_dim, rank]
};

// Of a delta net or of Mamba-2, beside its first and last matrix: qkv is [LinearAttention::input_rows(), a multiple of 16, hidden], o
// [hidden, value_heads * value_dim].
struct DeviceDelta {
    const float *convolution = nullptr; // [channels, kRing], the newest token's last
    const float *decay = nullptr;       // [value_heads]
    const float *step = nullptr;        // [value_heads], or of each channel [value_heads, key_dim]
    const float *bias = nullptr;        // [channels] of the convolution, or null
    const float *skip = nullptr;        // [value_heads], or null
    DeviceNorm norm;                    // [value_dim], or of all heads [values_size]
    Matrix a, z;                        // ChannelDeltaNet's
};

// Of a short convolution, beside its matrices: qkv is B, C and x, [3 channels, a multiple of 16, hidden], with qkv_bias,
// o [hidden, channels].
struct DeviceConvolution {
    const float *filter = nullptr; // [width, channels], the newest token's last
    const float *bias = nullptr;   // [channels], or null
};

// As Layer::mixer, but for what all of them have.
using DeviceMixer =
    std::variant<NoMixer, DeviceAttention, DeviceLatent, DeviceDelta, DeviceConvolution>;

// A layer without a mixer or without a feed-forward has no matrices of it: they have no rows, or no columns.
struct DeviceLayer {
    DeviceNorm before_attention,
        after_attention; // [hidden]; that of a layer beside another is the other's
    DeviceNorm before_feed_forward, after_feed_forward; // [hidden]
    DeviceNorm after_shared;                            // [hidden]
    DeviceNorm after_input;                             // [hidden]
    const float *qkv_bias = nullptr;                    // [qkv.rows], or null
    const float *o_bias = nullptr;                      // [hidden]
    const float *gate_up_bias = nullptr;                // [gate_up.rows]
    const float *down_bias = nullptr;                   // [hidden]
    const float *curve = nullptr;                       // [2] rise and fall of xielu
    DeviceMixer mixer;
    Matrix qkv;                    // the mixer's first: [first_rows(), hidden]
    Matrix o;                      // and its last: [hidden, last_columns()]
    Matrix gate_up;                // [2 width, hidden], or without a gate [width, hidden]
    Matrix down;                   // [hidden, width]
    DeviceExperts experts;         // or none
    Matrix input_gate;             // [LayerInputs::width, hidden], or none
    Matrix input_down;             // [hidden, LayerInputs::width]
    const float *scalar = nullptr; // [1], or null: 1

    bool mixes() const { return qkv.rows > 0; }
};

struct DeviceWeights {
    const void *embedding = nullptr;       // [vocabulary, hidden]
    Matrix head;                           // [padded_vocabulary, hidden]: a multiple of 16 rows
    const float *head_bias = nullptr;      // [padded_vocabulary], or null
    DeviceNorm final_norm;                 // [hidden]
    const void *input_embedding = nullptr; // [vocabulary, layers * LayerInputs::width]
    Matrix input_projection;               // [layers * LayerInputs::width, hidden]
    DeviceNorm input_norm;                 // [LayerInputs::width]
    std::vector<DeviceLayer> layers;
    int64_t in_e4m3 = 0;              // of the layers' matrices
    int64_t packed = 0;               // of all matrices, those in four bits
    int64_t expanded = 0;             // of those that the checkpoint has in four bits
    std::string formats;              // of what is packed: "int4, mxfp4"
    std::string refusals;             // why others are expanded
    int64_t widened = 0;              // of those that the checkpoint has in e4m3
    int64_t widened_with_experts = 0; // the same, of feed-forwards that have experts
    DeviceMemory memory;              // all of it

    bool scaled() const { return in_e4m3 > 0; }
};

struct LoadOptions {
    DType element = DType::bf16;
    // The tensors' shapes count, their bytes are not read; weights as of a fresh model (normal, deviation
    // 0.02; norms 1; biases 0).
    bool random = false;
    bool skewed_routing = false; // of random ones: half of the turns are an eighth of the experts'
    uint64_t seed = 0;
    int32_t threads = 0;
    Quantize quantize = Quantize::none;
    // Whether there are products with such a matrix. ends: its product ends a sublayer.
    std::function<bool(int64_t rows, int64_t columns, Scaling scaling, bool ends)> takes = {};
    bool rounds_in_steps = true;  // else what is wanted in e4m3 is rounded at load, four bits too
    bool experts_in_e4m3 = false; // whether there are products of experts with such matrices
};
Result<DeviceWeights> load_weights(const Model &model, const LoadOptions &options);
// What they take on the device. Nothing is read.
Result<int64_t> loaded_bytes(const Model &model, const LoadOptions &options);

} // namespace batchllm::cuda
