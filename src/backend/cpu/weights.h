// A model's mapped weights -> packed matrices and float vectors, made once at load.
#pragma once

#include <variant>
#include <vector>

#include "backend/cpu/linear.h"
#include "model/model.h"

namespace batchllm::cpu {

// A vector of weights as floats; empty if the model does not have it.
using Vector = std::vector<float>;

struct PackedNorm {
    NormKind kind = NormKind::none;
    Vector weight; // [length] including the offset
    Vector bias;   // [length] of a layer norm, else empty
    float epsilon = 0;

    explicit operator bool() const { return kind != NormKind::none; }
};

struct PackedFeedForward {
    PackedMatrix gate_up;      // [2 width, hidden], interleaved; without a gate [width, hidden]
    Vector gate_bias, up_bias; // [width]
    PackedMatrix down;         // [hidden, width]
    Vector down_bias;          // [hidden]
    float curve[2] = {};       // as Kernels::activate takes it
};

struct PackedExperts {
    PackedNorm router_norm, before, after; // [hidden]
    PackedMatrix router;                   // [experts, hidden]
    Vector router_bias;                    // [experts]
    Vector correction, expert_scale;       // [experts]
    std::vector<PackedFeedForward> each;
};

struct PackedAttention {
    PackedMatrix qkv; // [q rows + 2 kv_heads * head_dim + gate rows, hidden]; [q rows, hidden] if
                      // the layer has no keys and values of its own
    Vector qkv_bias;  // one per row, zero where only some rows have a bias
    PackedNorm q_norm, k_norm, v_norm; // as Attention's
    Vector sinks;                      // [heads] in base 2
};

struct PackedLatent {
    PackedMatrix first; // [q or q_down, then down; hidden]
    Vector first_bias;  // one per row, zero where only some rows have a bias
    PackedMatrix q;     // of q_down's results, if there is one
    Vector q_bias;
    PackedNorm q_norm, norm;
    std::vector<PackedMatrix> keys;   // [heads] K^T: [rank, plain]
    std::vector<PackedMatrix> values; // [heads] V: [value_dim, rank]
};

// Of any kind of LinearAttention.
struct PackedLinearAttention {
    PackedMatrix input;      // [LinearAttention::input_rows, hidden]
    Vector convolution;      // [width, channels]
    Vector convolution_bias; // [channels]
    Vector decay;            // [value_heads] -exp(LinearAttention::decay)
    Vector step_bias;        // [value_heads]; of a channel's delta net [value_heads * key_dim]
    PackedMatrix a, z;       // as ChannelDeltaNet's
    Vector skip;             // [value_heads]
    Vector query_scale,
        key_scale;   // [key_dim] turn an RMSNorm into L2 normalisation; query_scale also divides by
                     // sqrt(key_dim)
    PackedNorm norm; // as LinearAttention's
};

struct PackedConvolution {
    PackedMatrix bx;       // [2 channels, hidden], interleaved
    PackedMatrix c;        // [channels, hidden]
    Vector b_bias, x_bias; // [channels]
    Vector c_bias;         // [channels]
    Vector filter;         // [width, channels]
    Vector filter_bias;    // [channels]
};

// As Layer::mixer, but for its last matrix.
using PackedMixer =
    std::variant<NoMixer, PackedAttention, PackedLatent, PackedLinearAttention, PackedConvolution>;

struct PackedLayer {
    PackedNorm before_attention, after_attention;
    PackedNorm before_feed_forward, after_feed_forward;
    PackedMixer mixer;
    PackedMatrix o; // [hidden, heads * head_dim], of whatever mixes
    Vector o_bias;  // [hidden]
    // Those that Layer::feed has; a shared expert is a feed_forward beside experts.
    PackedFeedForward feed_forward;
    PackedExperts experts;
    PackedMatrix shared_gate; // [1, hidden]
    PackedNorm after_shared;
    PackedMatrix input_gate; // [LayerInputs::width, hidden]
    PackedMatrix input_down; // [hidden, LayerInputs::width]
    PackedNorm after_input;
    float scalar = 1;
};

struct PackedWeights {
    std::vector<PackedLayer> layers;
    PackedNorm final_norm;
    PackedMatrix head;             // [vocabulary, hidden]
    Vector head_bias;              // [vocabulary]
    PackedMatrix input_projection; // [layers * LayerInputs::width, hidden]
    PackedNorm input_norm;         // [LayerInputs::width]
};

Vector read_vector(const Tensor &tensor);
// length: of the norm, if its weight is absent.
PackedNorm pack_norm(const Norm &norm, int64_t length);
Status pack_feed_forward(const FeedForward &from, Linear *linear, PackedFeedForward *to);
// All but the parts of layer inputs.
Status pack_layer(const Layer &from, int64_t hidden, Linear *linear, PackedLayer *to);
Status pack_experts(const Experts &from, int64_t hidden, Linear *linear, PackedExperts *to);
Result<PackedWeights> pack_weights(const Model &model, Linear *linear);

} // namespace batchllm::cpu
