// A model's mapped weights -> packed matrices and float vectors, once, at load.
#pragma once

#include <vector>

#include "backend/cpu/linear.h"
#include "model/model.h"

namespace batchllm::cpu {

// A vector of weights as floats, empty when the model has none.
using Vector = std::vector<float>;

struct PackedLayer {
    Vector input_norm;          // [hidden]
    PackedMatrix qkv;           // [(heads + 2 kv_heads) * head_dim, hidden]
    Vector qkv_bias;            // [(heads + 2 kv_heads) * head_dim], zeros where only some have one
    Vector q_norm, k_norm;      // [head_dim]
    PackedMatrix o;             // [hidden, heads * head_dim]
    Vector o_bias;              // [hidden]
    Vector post_attention_norm; // [hidden]
    PackedMatrix gate_up;       // [2 intermediate, hidden], interleaved
    Vector gate_bias, up_bias;  // [intermediate]
    PackedMatrix down;          // [hidden, intermediate]
    Vector down_bias;           // [hidden]
};

struct PackedWeights {
    std::vector<PackedLayer> layers;
    Vector final_norm;    // [hidden]
    PackedMatrix lm_head; // [vocabulary, hidden]
};

Result<PackedWeights> pack_weights(const Model &model, Linear *linear);

// out = row `row` of a matrix, as floats.
void read_row(const Tensor &tensor, int64_t row, float *out);

} // namespace batchllm::cpu
