#include "step/supported.h"

#include "attention/attention.h"

namespace batchllm::cuda {
namespace {

constexpr int32_t kMostHidden = 32768; // a norm's block holds a row

// What of the layer is not computed; null: nothing.
const char *missing(const Model &model, const Layer &layer) {
    const Attention &a = layer.attention;
    const auto plain = [](const Norm &norm) {
        return norm.kind == NormKind::rms && norm.weight && !norm.bias && norm.offset == 0;
    };
    if (!plain(layer.before_attention) || !plain(layer.before_feed_forward)) {
        return "a norm other than RMSNorm";
    }
    if (layer.after_attention || layer.after_feed_forward) return "a norm after a sublayer";
    if (layer.parallel) return "attention and feed-forward side by side";
    if (layer.residual_scale != 1) return "a residual scale";
    if (a.rope < 0) return "attention without a rope";
    const Rope &rope = model.ropes[static_cast<size_t>(a.rope)];
    if (rope.dims() != a.head_dim || rope.pairs || rope.scale != 1) {
        return "a rope of part of a head, of pairs, or scaled";
    }
    if (a.softcap != 0 || a.sinks) return "a softcap or sinks of attention";
    if (bool(a.q_norm) != bool(a.k_norm) || a.norm_whole ||
        (a.q_norm && (!plain(a.q_norm) || !plain(a.k_norm)))) {
        return "norms of queries and keys other than RMSNorm of each head";
    }
    if (layer.feed_forward.activation != Activation::silu || !layer.feed_forward.gate) {
        return "a feed-forward other than SwiGLU";
    }
    return nullptr;
}

Status check_sizes(const Model &model, const Layer &layer, size_t number) {
    const Attention &a = layer.attention;
    if (layer.feed_forward.width % 8 == 0 && a.head_dim % 16 == 0 && a.head_dim <= 256 &&
        a.gqa_ratio() <= kMatrixRows && model.hidden % 8 == 0 && model.hidden <= kMostHidden) {
        return {};
    }
    return error(BATCHLLM_ERROR_UNSUPPORTED,
                 "cuda backend: layer %zu: hidden_size %d and intermediate_size %d must be "
                 "multiples of 8 (hidden at most %d), head_dim %d a multiple of 16 up to 256, and "
                 "%d query heads for one of keys at most %d",
                 number, model.hidden, layer.feed_forward.width, kMostHidden, a.head_dim,
                 a.gqa_ratio(), kMatrixRows);
}

} // namespace

Status check_supported(const Model &model) {
    for (size_t i = 0; i < model.layers.size(); ++i) {
        RETURN_IF_ERROR(check_sizes(model, model.layers[i], i));
        if (const char *what = missing(model, model.layers[i])) {
            return error(BATCHLLM_ERROR_UNSUPPORTED, "cuda backend: layer %zu: %s", i, what);
        }
    }
    const Norm &last = model.final_norm;
    if (last.kind != NormKind::rms || !last.weight || last.bias || last.offset != 0) {
        return error(BATCHLLM_ERROR_UNSUPPORTED, "cuda backend: a last norm other than RMSNorm");
    }
    if (model.embedding_scale != 1 || model.logits_scale != 1 || model.logits_softcap != 0 ||
        model.head.bias) {
        return error(BATCHLLM_ERROR_UNSUPPORTED,
                     "cuda backend: scaled embeddings; scaled, capped or biased logits");
    }
    return {};
}

} // namespace batchllm::cuda
