#include "step/supported.h"

#include <algorithm>

#include "attention/attention.h"
#include "backend/gpu/step_buffers.h"
#include "base/visit.h"
#include "elementwise/elementwise.h"
#include "elementwise/norm.h"
#include "experts/routing.h"
#include "recurrent/delta.h"
#include "recurrent/short_convolution.h"
#include "recurrent/state_space.h"

namespace batchllm::cuda {
namespace {

constexpr int32_t kMostHeadDim = 512; // attention's

const char *missing(const Experts &experts) {
    const FeedForward &first = experts.each[0];
    const bool squared = first.activation == Activation::relu_squared;
    if (squared && first.gate) return "a squared ReLU (relu2) of experts' gates";
    if (first.activation == Activation::xielu) return "experts with xIELU";
    if (!squared && !first.gate) return "experts without a gate other than with relu2";
    for (const FeedForward &expert : experts.each) {
        if (bool(expert.gate) != bool(first.gate)) return "experts of which some have a gate";
        if (expert.width != first.width || expert.activation != first.activation) {
            return "experts of different widths or activations";
        }
    }
    if (experts.router.weighs_input && experts.router.expert_scale) {
        return "a router that weighs the experts' inputs and scales experts";
    }
    if (experts.router.groups > kMostGroups) return "a router of more than 64 groups";
    if (static_cast<int64_t>(experts.each.size()) > kMostExperts) return "more than 1024 experts";
    return nullptr;
}

const char *missing_norms(const Layer &layer) {
    const Experts &experts = *layer.experts();
    const SharedExperts *both = layer.shared();
    if (experts.before && layer.parallel) return "a norm before experts in a parallel block";
    if (experts.after && both == nullptr) {
        return "a norm after experts without a feed-forward beside them";
    }
    if (both != nullptr && (experts.after || both->after) && both->gate) {
        return "norms after experts and after a shared expert with a gate";
    }
    return nullptr;
}

const char *missing(const Mamba2 &space) {
    if (space.width > kRing) return "a state-space layer's convolution over more than 4 tokens";
    if (space.values_size() % kVector != 0) {
        return "a state-space layer with values of no multiple of 8";
    }
    if (space.norm && (space.norm.kind != NormKind::rms || space.norm.bias || !space.norm.weight)) {
        return "a state-space layer's norm other than RMSNorm with a weight";
    }
    return missing_in_state_space(space.key_dim, space.value_dim, space.value_heads,
                                  space.norm ? space.norm_parts : 1);
}

const char *missing(const DeltaNet &delta) {
    if (delta.convolution.size() != 1 || delta.convolution[0].bias) {
        return "a delta net other than Qwen3-Next's";
    }
    if (delta.width > kRing) return "a delta net's convolution over more than 4 tokens";
    if (delta.key_dim > kMostDeltaDim || delta.value_dim > kMostDeltaDim) {
        return "a delta net with heads of more than 128";
    }
    if (delta.value_dim % 4 != 0) return "a delta net with values of no multiple of 4";
    if (delta.values_size() % kVector != 0) return "a delta net with values of no multiple of 8";
    if (delta.norm.kind != NormKind::rms || delta.norm.bias || !delta.norm.weight) {
        return "a delta net's norm other than RMSNorm with a weight";
    }
    return nullptr;
}

const char *missing(const ChannelDeltaNet &net) {
    if (net.width > kRing) return "a delta net's convolution over more than 4 tokens";
    if (net.key_dim > kMostDeltaDim || net.value_dim > kMostDeltaDim) {
        return "a delta net with heads of more than 128";
    }
    if (net.value_dim % 4 != 0) return "a delta net with values of no multiple of 4";
    for (const int64_t size : {net.values_size(), net.a.rows(), int64_t{net.gate_rank}}) {
        if (size % kVector != 0) {
            return "a delta net that decays by channel with sizes of no multiple of 8";
        }
    }
    const bool biased =
        net.a.bias || net.z.bias ||
        std::any_of(net.convolution.begin(), net.convolution.end(),
                    [](const Weight &convolution) { return bool(convolution.bias); });
    if (biased) return "a delta net that decays by channel with biases";
    if (net.norm.kind != NormKind::rms || net.norm.bias || !net.norm.weight) {
        return "a delta net's norm other than RMSNorm with a weight";
    }
    return nullptr;
}

const char *missing(const ShortConvolution &convolution) {
    if (convolution.width > kRing) return "a short convolution over more than 4 tokens";
    if (convolution.channels() % kConvolvedChannels != 0) {
        return "a short convolution of no multiple of 8 channels";
    }
    return nullptr;
}

const char *missing_of_latents(const Model &model, const Attention &a) {
    const Latent &latent = a.latent;
    for (const int64_t size : {int64_t{latent.rank}, int64_t{latent.plain}, int64_t{latent.turned},
                               int64_t{latent.value_dim}, latent.q_down.rows()}) {
        if (size % kVector != 0) return "latents with sizes of no multiple of 8";
    }
    if (latent.rank > 512 || latent.turned > latent_turned) {
        return "latents of more than 512, or with a turned part of more than 64";
    }
    if (a.heads > kMatrixRows) return "latents with more than 128 heads";
    if (a.q.bias || a.softcap != 0 || a.sinks || a.window != 0) {
        return "latents with biases of queries, caps, sinks or windows";
    }
    if (a.long_scale != 0 && !latent.q_down) {
        return "queries scaled by position that have no latents";
    }
    if (a.rope >= 0 && model.ropes[static_cast<size_t>(a.rope)].dims() != latent.turned) {
        return "latents whose rope turns only a part of the turned numbers";
    }
    for (const Layer &layer : model.layers) { // padding of their buffers is zeroed once
        const Attention *other = layer.attention();
        if (other != nullptr && other->latent &&
            (other->latent.rank != latent.rank || other->latent.turned != latent.turned)) {
            return "latents of different sizes";
        }
    }
    const auto plain = [](const Norm &norm) { return norm.kind != NormKind::layer && !norm.bias; };
    return plain(latent.norm) && plain(latent.q_norm) ? nullptr
                                                      : "norms of latents other than RMSNorm";
}

const char *missing(const Model &model, const Attention &a) {
    if (a.latent) return missing_of_latents(model, a);
    if (a.rope >= 0) {
        const int32_t dims = model.ropes[static_cast<size_t>(a.rope)].dims();
        if (dims > a.head_dim) return "a rope of more than a head";
    }
    if (a.norm_whole && (a.q_norm.kind == NormKind::layer || a.k_norm.kind == NormKind::layer ||
                         bool(a.q_norm) != bool(a.k_norm))) {
        return "norms of all queries or all keys together other than RMSNorm of both";
    }
    if (a.norm_whole && model.ranks > 1 && (a.q.bias || a.k.bias)) {
        return "norms of all queries or all keys together with biases, divided among devices";
    }
    if (a.chunked && model.pictures_see_themselves) {
        return "attention in chunks with pictures whose tokens see each other";
    }
    if (a.norm_whole && a.v_norm) return "norms of values beside one of all queries together";
    return nullptr;
}

// What of the layer is not computed; null: nothing.
const char *missing(const Model &model, const Layer &layer) {
    const bool alone = !layer.mixes() || !layer.feeds();
    if (alone && (model.layer_inputs || layer.scalar || layer.parallel)) {
        return "a mixer or a feed-forward alone beside layer inputs, a scalar or a parallel block";
    }
    using Text = const char *;
    const char *of_mixer = std::visit(
        Visitor{[](const NoMixer &) { return Text(); },
                [&](const Attention &a) { return missing(model, a); },
                [](const DeltaNet &net) { return missing(net); },
                [](const ChannelDeltaNet &net) { return missing(net); },
                [](const Mamba2 &mamba) { return missing(mamba); },
                [](const ShortConvolution &convolution) { return missing(convolution); }},
        layer.mixer);
    if (of_mixer != nullptr) return of_mixer;
    if (layer.parallel && !layer.before_attention) {
        return "attention and feed-forward side by side without a norm before them";
    }
    const FeedForward *dense = layer.feed_forward();
    if (dense != nullptr && dense->activation == Activation::clamped_swiglu) {
        return "a clamped SwiGLU outside experts";
    }
    if (layer.experts() == nullptr) return nullptr;
    const char *of_norms = missing_norms(layer);
    return of_norms != nullptr ? of_norms : missing(*layer.experts());
}

// The rows that the layer before it has normed must still be there.
const char *missing_beside(const Model &model, size_t index) {
    const Layer &layer = model.layers[index];
    if (!layer.beside) return nullptr;
    if (index == 0 || !layer.mixes() || layer.parallel) return "a mixer beside none";
    if (layer.before_attention) return "a mixer beside another with a norm of its own before it";
    const Layer &other = model.layers[index - 1];
    if (!other.mixes() || other.feeds() || other.beside || !other.before_attention) {
        return "a mixer beside a layer other than a mixer alone behind a norm";
    }
    return nullptr;
}

Status check_sizes(const Model &model, const Layer &layer, size_t number) {
    const Attention none, *own = layer.attention(), &a = own != nullptr ? *own : none;
    const Experts *experts = layer.experts();
    const FeedForward *dense = layer.feed_forward();
    const int32_t width = dense != nullptr ? dense->width : 0;
    if (experts != nullptr && experts->each[0].width % kVector != 0) {
        return error(BATCHLLM_ERROR_UNSUPPORTED,
                     "cuda backend: layer %zu: experts are %d wide: must be a multiple of %d",
                     number, experts->each[0].width, kVector);
    }
    const bool heads_fit =
        own == nullptr || a.latent ||
        (a.head_dim % 2 == 0 && a.head_dim <= kMostHeadDim && a.gqa_ratio() <= kMatrixRows);
    if (width % kVector == 0 && heads_fit && model.hidden % kVector == 0 &&
        model.hidden <= kMostNormed) {
        return {};
    }
    return error(
        BATCHLLM_ERROR_UNSUPPORTED,
        "cuda backend: layer %zu: hidden_size %d and intermediate_size %d must be "
        "multiples of %d (hidden at most %d), head_dim %d even and at most %d, and %d query "
        "heads for one of keys at most %d",
        number, model.hidden, width, kVector, kMostNormed, a.head_dim, kMostHeadDim,
        own == nullptr ? 0 : a.gqa_ratio(), kMatrixRows);
}

} // namespace

Status check_supported(const Model &model) {
    const LayerInputs &inputs = model.layer_inputs;
    if (inputs.width % kVector != 0) {
        return error(BATCHLLM_ERROR_UNSUPPORTED,
                     "cuda backend: a layer's part of the layer inputs is %d wide: must be a "
                     "multiple of %d",
                     inputs.width, kVector);
    }
    for (size_t i = 0; i < model.layers.size(); ++i) {
        const char *what = missing_beside(model, i);
        if (what == nullptr) what = missing(model, model.layers[i]);
        if (what != nullptr) {
            return error(BATCHLLM_ERROR_UNSUPPORTED, "cuda backend: layer %zu: %s", i, what);
        }
        RETURN_IF_ERROR(check_sizes(model, model.layers[i], i));
    }
    return {};
}

} // namespace batchllm::cuda
