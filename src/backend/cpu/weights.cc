#include "backend/cpu/weights.h"

#include <cstring>

#include "backend/cpu/bfloat16.h"

namespace batchllm::cpu {
namespace {

Vector read_vector(const Tensor &tensor) {
    Vector out;
    if (!tensor) return out;
    out.resize(static_cast<size_t>(tensor.rows * tensor.columns));
    Tensor flat = tensor;
    flat.columns = tensor.rows * tensor.columns;
    flat.rows = 1;
    read_row(flat, 0, out.data());
    return out;
}

// Vectors one after the other; those that the model lacks are zeros of the given length.
Vector concatenate(std::span<const std::pair<const Tensor *, int64_t>> parts) {
    Vector out;
    bool some = false;
    for (const auto &[tensor, length] : parts) {
        Vector part = read_vector(*tensor);
        some = some || !part.empty();
        part.resize(static_cast<size_t>(length));
        out.insert(out.end(), part.begin(), part.end());
    }
    if (!some) out.clear();
    return out;
}

} // namespace

void read_row(const Tensor &tensor, int64_t row, float *out) {
    const std::byte *from = tensor.data + row * tensor.columns * dtype_bytes(tensor.dtype);
    const int64_t n = tensor.columns;
    if (tensor.dtype == DType::f32) {
        std::memcpy(out, from, static_cast<size_t>(n) * sizeof(float));
        return;
    }
    for (int64_t i = 0; i < n; ++i) {
        uint16_t bits;
        std::memcpy(&bits, from + 2 * i, sizeof bits);
        out[i] = tensor.dtype == DType::bf16 ? bfloat16_to_float(bits) : float16_to_float(bits);
    }
}

Result<PackedWeights> pack_weights(const Model &model, Linear *linear) {
    const ModelConfig &config = model.config;
    const int64_t q_size = int64_t{config.heads} * config.head_dim;
    const int64_t kv_size = int64_t{config.kv_heads} * config.head_dim;
    PackedWeights packed;
    packed.layers.reserve(model.layers.size());
    for (const LayerWeights &from : model.layers) {
        PackedLayer &to = packed.layers.emplace_back();
        to.input_norm = read_vector(from.input_norm);
        to.post_attention_norm = read_vector(from.post_attention_norm);
        to.q_norm = read_vector(from.q_norm);
        to.k_norm = read_vector(from.k_norm);
        const std::pair<const Tensor *, int64_t> biases[] = {
            {&from.q_bias, q_size}, {&from.k_bias, kv_size}, {&from.v_bias, kv_size}};
        to.qkv_bias = concatenate(biases);
        to.o_bias = read_vector(from.o_bias);
        to.gate_bias = read_vector(from.gate_bias);
        to.up_bias = read_vector(from.up_bias);
        to.down_bias = read_vector(from.down_bias);
        const Tensor qkv[] = {from.q, from.k, from.v};
        const Tensor gate_up[] = {from.gate, from.up};
        ASSIGN_OR_RETURN(to.qkv, linear->pack(qkv, false));
        ASSIGN_OR_RETURN(to.o, linear->pack({&from.o, 1}, false));
        ASSIGN_OR_RETURN(to.gate_up, linear->pack(gate_up, true));
        ASSIGN_OR_RETURN(to.down, linear->pack({&from.down, 1}, false));
    }
    packed.final_norm = read_vector(model.final_norm);
    ASSIGN_OR_RETURN(packed.lm_head, linear->pack({&model.lm_head, 1}, false));
    return packed;
}

} // namespace batchllm::cpu
