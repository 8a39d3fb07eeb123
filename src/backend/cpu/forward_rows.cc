// What a token's row goes through by itself: its embedding and angles, norms of heads, the rotation.
#include <cmath>

#include "backend/cpu/forward.h"

namespace batchllm::cpu {

// A token's embedding, and its angles.
void Forward::embed(const TokenBatch &batch, int64_t token) {
    float *x = residual_.floats() + token * model_.hidden;
    read_row(model_.embedding, batch.tokens[token], x);
    if (model_.embedding_scale != 1) {
        for (int64_t i = 0; i < model_.hidden; ++i) x[i] *= model_.embedding_scale;
    }
    float *cosine = cosine_.floats() + token * angles_;
    float *sine = sine_.floats() + token * angles_;
    for (const Rope &rope : model_.ropes) {
        for (const float frequency : rope.frequencies) {
            // In float, as the reference models compute it.
            const float angle = static_cast<float>(batch.positions[token]) * frequency;
            *cosine++ = std::cos(angle) * rope.scale;
            *sine++ = std::sin(angle) * rope.scale;
        }
    }
}

void Forward::norm_in_place(const PackedNorm &norm, float *x, int32_t n) const {
    if (norm.kind == NormKind::rms) {
        kernels_.rms_norm_head(x, norm.weight.data(), norm.epsilon, n);
    } else if (norm.kind == NormKind::layer) {
        kernels_.layer_norm_head(x, norm.weight.data(), norm.bias.data(), norm.epsilon, n);
    }
}

// `count` heads of queries or keys, one after the other.
void Forward::norm_heads(const PackedNorm &norm, bool whole, float *heads, int32_t count,
                         int32_t head_dim) const {
    if (!norm) return;
    if (whole) return norm_in_place(norm, heads, count * head_dim);
    for (int32_t h = 0; h < count; ++h) norm_in_place(norm, heads + h * head_dim, head_dim);
}

// Rotates a head by its token's angles.
void Forward::turn(const Attention &attention, int32_t token, float *head) const {
    if (attention.rope < 0) return;
    const Rope &rope = model_.ropes[attention.rope];
    const int64_t begin = token * angles_ + angles_begin_[attention.rope];
    (rope.pairs ? kernels_.rope_pairs : kernels_.rope)(head, cosine_.floats() + begin,
                                                       sine_.floats() + begin, rope.dims() / 2);
}

} // namespace batchllm::cpu
