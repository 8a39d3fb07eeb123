// Small models without weights, with layers of every kind that a description can express. Each is
// named for its special feature; families that publish such layers are named beside it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "model/model.h"

namespace batchllm {

struct LayerKind {
    std::string name;
    std::function<Model()> make;
};

namespace kinds {

inline Tensor tensor(int64_t rows, int64_t columns) {
    Tensor made;
    made.rows = rows;
    made.columns = columns;
    return made;
}

inline Norm norm(NormKind kind, int64_t length) {
    Norm made;
    made.kind = kind;
    made.weight = tensor(length, 1);
    return made;
}

inline void add_bias(Weight *weight) { weight->bias = tensor(weight->rows(), 1); }

inline Rope rope(int32_t dims, float theta = 10000) {
    Rope made;
    for (int32_t i = 0; i < dims; i += 2) {
        made.frequencies.push_back(
            std::pow(theta, -static_cast<float>(i) / static_cast<float>(dims)));
    }
    return made;
}

// The plain decoder (Llama): RMSNorms before, SwiGLU, one rope, no biases; two layers.
inline Model plain(int32_t heads = 4, int32_t kv_heads = 2, int32_t head_dim = 64,
                   int32_t hidden = 136, int32_t width = 200) {
    Model model;
    model.vocabulary = 100;
    model.hidden = hidden;
    model.max_positions = 4096;
    model.embedding = tensor(model.vocabulary, model.hidden);
    model.head.values = model.embedding;
    model.final_norm = norm(NormKind::rms, model.hidden);
    model.ropes = {rope(head_dim)};
    Layer layer;
    layer.before_attention = layer.before_feed_forward = model.final_norm;
    Attention &a = layer.mixer.emplace<Attention>();
    a.heads = heads;
    a.kv_heads = kv_heads;
    a.head_dim = head_dim;
    a.rope = 0;
    a.scale = 1 / std::sqrt(static_cast<float>(head_dim));
    a.q.values = tensor(a.q_size(), model.hidden);
    a.k.values = a.v.values = tensor(a.kv_size(), model.hidden);
    a.o.values = tensor(model.hidden, a.q_size());
    FeedForward &f = layer.feed.emplace<FeedForward>();
    f.width = width;
    f.gate.values = f.up.values = tensor(f.width, model.hidden);
    f.down.values = tensor(model.hidden, f.width);
    model.layers = {layer, layer};
    return model;
}

template <typename Change> Model changed(Model model, const Change &change) {
    for (Layer &layer : model.layers) change(&layer);
    return model;
}

inline void add_head_norms(NormKind kind, Layer *layer) {
    Attention &a = *layer->attention();
    a.norm_whole = false;
    a.q_norm = a.k_norm = norm(kind, a.head_dim);
}

inline void norm_after(Layer *layer) {
    layer->after_attention = layer->after_feed_forward = layer->before_attention;
}

inline Model gemma(bool capped) {
    Model model = changed(plain(4, 2, 128), [&](Layer *layer) {
        for (Norm *n : {&layer->before_attention, &layer->before_feed_forward}) n->offset = 1;
        norm_after(layer);
        layer->feed_forward()->activation = Activation::gelu_tanh;
        layer->attention()->scale = 0.02F;
        if (capped) {
            layer->attention()->softcap = 5;
        } else {
            add_head_norms(NormKind::rms, layer);
            layer->attention()->q_norm.offset = layer->attention()->k_norm.offset = 1;
        }
    });
    model.layers[0].attention()->window = 20;
    model.final_norm.offset = 1;
    model.embedding_scale = 1.5F;
    model.tied = true;
    if (capped) {
        model.logits_softcap = 8;
    } else {
        model.ropes.push_back(rope(128, 1e6F));
        model.layers[1].attention()->rope = 1;
    }
    return model;
}

inline Model cohere() {
    Model model = changed(plain(4, 2, 128), [](Layer *layer) {
        layer->before_attention.kind = NormKind::layer;
        layer->before_feed_forward = Norm();
        layer->parallel = true;
    });
    model.final_norm.kind = NormKind::layer;
    model.ropes[0].pairs = true;
    model.layers[1].attention()->rope = -1;
    model.layers[0].attention()->window = 30;
    model.logits_scale = 0.25F;
    model.tied = true;
    return model;
}

inline Model starcoder() {
    Model model = changed(plain(), [](Layer *layer) {
        for (Norm *n : {&layer->before_attention, &layer->before_feed_forward}) {
            n->kind = NormKind::layer;
            n->bias = n->weight;
        }
        Attention &a = *layer->attention();
        FeedForward &f = *layer->feed_forward();
        f.activation = Activation::gelu;
        f.gate = Weight();
        for (Weight *w : {&a.q, &a.k, &a.v, &a.o, &f.up, &f.down}) add_bias(w);
    });
    model.final_norm.kind = NormKind::layer;
    model.final_norm.bias = model.final_norm.weight;
    add_bias(&model.head);
    return model;
}

// All features at once; in no published model.
inline Model crowd() {
    Model model = changed(plain(6, 2, 40), [](Layer *layer) {
        layer->parallel = true;
        layer->residual_scale = 0.7F;
        layer->after_attention = norm(NormKind::layer, 136);
        layer->after_attention.bias = layer->after_attention.weight;
        layer->after_feed_forward = norm(NormKind::rms, 136);
        layer->after_feed_forward.weight = Tensor();
        add_head_norms(NormKind::layer, layer);
        layer->attention()->q_norm.bias = layer->attention()->q_norm.weight;
        layer->attention()->k_norm.weight = Tensor();
        Attention &a = *layer->attention();
        FeedForward &f = *layer->feed_forward();
        f.activation = Activation::gelu;
        for (Weight *w : {&a.q, &a.k, &a.v, &a.o, &f.gate, &f.up, &f.down}) add_bias(w);
    });
    model.ropes[0] = rope(20);
    model.ropes[0].scale = 1.2F;
    model.final_norm = Norm();
    model.logits_scale = 0.5F;
    model.logits_softcap = 3;
    add_bias(&model.head);
    return model;
}

// Layers of two shapes, for buffers sized by the widest.
inline Model two_shapes() {
    Model model = plain(8, 1, 64);
    Model wide = plain(2, 2, 128);
    FeedForward &f = *wide.layers[0].feed_forward();
    f.width = 320;
    f.gate.values = f.up.values = tensor(f.width, model.hidden);
    f.down.values = tensor(model.hidden, f.width);
    wide.layers[0].attention()->rope = 1;
    model.ropes.push_back(wide.ropes[0]);
    model.layers[1] = wide.layers[0];
    model.layers.push_back(model.layers[0]);
    return model;
}

// Layers 2 and 3 attend to the keys and values of layers 0 and 1; heads of two sizes; every layer has a
// part of a second embedding.
inline Model gemma4(bool inputs) {
    Model model = changed(plain(4, 2, 64), [&](Layer *layer) {
        norm_after(layer);
        layer->feed_forward()->activation = Activation::gelu_tanh;
        layer->scalar = tensor(1, 1);
    });
    Model wide = changed(plain(4, 1, 128), [](Layer *) {});
    model.layers[1].mixer = wide.layers[0].mixer;
    model.layers[1].attention()->rope = 1;
    model.ropes.push_back(rope(128, 1e6F));
    std::fill_n(model.ropes[1].frequencies.begin() + 16, 48, 0.0F);
    for (Layer &layer : model.layers) {
        Attention &a = *layer.attention();
        add_head_norms(NormKind::rms, &layer);
        a.v_norm.kind = NormKind::rms;
        a.scale = 0.03F;
    }
    model.layers[0].attention()->window = 30;
    for (const int32_t from : {0, 1}) {
        Layer layer = model.layers[static_cast<size_t>(from)];
        Attention &a = *layer.attention();
        a.kv_layer = from;
        a.k = a.v = Weight();
        a.k_norm = a.v_norm = Norm();
        model.layers.push_back(layer);
    }
    if (!inputs) return model;
    LayerInputs &parts = model.layer_inputs;
    parts.width = 24;
    const int64_t all = 4 * parts.width;
    parts.embedding = tensor(model.vocabulary, all);
    parts.embedding_scale = 4;
    parts.projection.values = tensor(all, model.hidden);
    parts.projection_scale = 0.1F;
    parts.norm = norm(NormKind::rms, parts.width);
    parts.scale = 0.7F;
    for (Layer &layer : model.layers) {
        layer.input.activation = Activation::gelu_tanh;
        layer.input.gate.values = tensor(parts.width, model.hidden);
        layer.input.down.values = tensor(model.hidden, parts.width);
        layer.after_input = layer.after_attention;
    }
    return model;
}

// Six experts; a token uses two.
inline Experts six_experts(int64_t hidden) {
    FeedForward each;
    each.width = 72;
    each.gate.values = each.up.values = tensor(each.width, hidden);
    each.down.values = tensor(hidden, each.width);
    Experts made;
    made.each.assign(6, each);
    made.router.weight.values = tensor(6, hidden);
    made.router.chosen = 2;
    return made;
}

// Instead of the layer's feed-forward, or beside it.
inline Experts &set_experts(Layer *layer) {
    return layer->feed.emplace<Experts>(six_experts(layer->feed_forward()->up.columns()));
}
inline SharedExperts &share_experts(Layer *layer) {
    const FeedForward shared = *layer->feed_forward();
    return layer->feed.emplace<SharedExperts>(
        SharedExperts{six_experts(shared.up.columns()), shared, {}, {}});
}

// In no published model.
inline Model experts_alone() {
    return changed(plain(), [](Layer *layer) {
        Router &router = set_experts(layer).router;
        router.kind = RouterKind::sigmoid;
        router.correction = tensor(6, 1);
        router.normalised = true;
        router.scale = 1.5F;
        norm_after(layer);
        layer->residual_scale = 0.6F;
    });
}

inline Model shared_expert() {
    return changed(plain(), [](Layer *layer) {
        SharedExperts &both = share_experts(layer);
        both.gate.values = tensor(1, both.shared.up.columns());
        layer->residual_scale = 0.6F;
    });
}

// Experts beside the feed-forward of a layer (Gemma 4 26B-A4B), of a model made by gemma4(): each between norms of its
// own.
inline SharedExperts &share_normed_experts(Layer *layer) {
    SharedExperts &both = share_experts(layer);
    Experts &experts = both.experts;
    for (FeedForward &expert : experts.each) expert.activation = Activation::gelu_tanh;
    experts.before = experts.after = both.after = layer->before_feed_forward;
    experts.router.norm = layer->before_feed_forward;
    experts.router.normalised = true;
    // So that the last one that is chosen weighs little: a rounding may choose another.
    experts.router.chosen = 3;
    experts.router.logits_scale = 4;
    experts.router.expert_scale = tensor(6, 1);
    return both;
}

// In no published model: only some of these norms, of other kinds, with biases.
inline Model some_normed_experts() {
    Model model = changed(plain(), [](Layer *layer) {
        SharedExperts &both = share_normed_experts(layer);
        layer->residual_scale = 0.6F;
        add_bias(&both.experts.router.weight);
        add_bias(&both.shared.down);
    });
    Experts &first = *model.layers[0].experts();
    first.after = Norm();
    first.before.kind = NormKind::layer;
    first.before.bias = first.before.weight;
    first.router.norm = Norm();
    auto &second = std::get<SharedExperts>(model.layers[1].feed);
    second.after = second.experts.before = Norm();
    model.layers[1].after_feed_forward = model.layers[1].before_feed_forward;
    model.layers.push_back(model.layers[0]);
    model.layers[2].feed = Experts(*model.layers[0].experts());
    return model;
}

// As in gpt-oss.
inline Model biased_experts() {
    return changed(plain(8, 1, 64), [](Layer *layer) {
        Experts &experts = set_experts(layer);
        experts.router.normalised = true;
        add_bias(&experts.router.weight);
        for (FeedForward &expert : experts.each) {
            expert.activation = Activation::clamped_swiglu;
            for (Weight *w : {&expert.gate, &expert.up, &expert.down}) add_bias(w);
        }
        Attention &a = *layer->attention();
        a.sinks = tensor(a.heads, 1);
        for (Weight *w : {&a.q, &a.k, &a.v, &a.o}) add_bias(w);
    });
}

// A delta net before or after attention with an output gate.
inline Model hybrid(bool delta_first, int32_t key_heads, int32_t value_heads, int32_t key_dim = 20,
                    int32_t value_dim = 24) {
    Model model = changed(plain(4, 2, 64), [](Layer *layer) {
        for (Norm *n : {&layer->before_attention, &layer->before_feed_forward}) n->offset = 1;
        add_head_norms(NormKind::rms, layer);
        layer->attention()->gated = true;
        layer->attention()->q.values = tensor(2 * layer->attention()->q_size(), 136);
    });
    model.ropes[0] = rope(16);
    DeltaNet &delta = model.layers[delta_first ? 0 : 1].mixer.emplace<DeltaNet>();
    delta.key_heads = key_heads;
    delta.value_heads = value_heads;
    delta.key_dim = key_dim;
    delta.value_dim = value_dim;
    delta.width = 4;
    delta.input = {tensor(delta.channels(), model.hidden),
                   tensor(delta.values_size(), model.hidden), tensor(value_heads, model.hidden),
                   tensor(value_heads, model.hidden)};
    delta.convolution = {{tensor(delta.channels(), delta.width), {}}};
    delta.decay = delta.step_bias = tensor(value_heads, 1);
    delta.norm = norm(NormKind::rms, delta.value_dim);
    delta.o.values = tensor(model.hidden, delta.values_size());
    return model;
}

// A short convolution before or after attention with normed heads.
inline Model convolution(bool first, int32_t width, int64_t channels, bool biases) {
    Model model = changed(plain(), [](Layer *layer) { add_head_norms(NormKind::rms, layer); });
    ShortConvolution &made = model.layers[first ? 0 : 1].mixer.emplace<ShortConvolution>();
    made.width = width;
    made.b.values = made.c.values = made.x.values = tensor(channels, model.hidden);
    made.filter.values = tensor(channels, width);
    made.o.values = tensor(model.hidden, channels);
    for (Weight *w : {&made.b, &made.c, &made.x, &made.filter, &made.o}) {
        if (biases) add_bias(w);
    }
    return model;
}

// Mamba-2 before attention without a rope.
inline Model state_space(int32_t groups, int32_t heads, int32_t key_dim, int32_t value_dim,
                         bool bias) {
    Model model = changed(plain(4, 2, 64), [](Layer *layer) {
        layer->attention()->rope = -1;
        layer->residual_scale = 0.6F;
    });
    Mamba2 &mamba = model.layers[0].mixer.emplace<Mamba2>();
    mamba.key_heads = mamba.norm_parts = groups;
    mamba.value_heads = heads;
    mamba.key_dim = key_dim;
    mamba.value_dim = value_dim;
    mamba.width = bias ? 4 : 3;
    for (const int64_t rows : {mamba.keys_size(), mamba.keys_size(), mamba.values_size()}) {
        mamba.input.push_back(tensor(rows, model.hidden));
        mamba.convolution.push_back({tensor(rows, mamba.width), {}});
        if (bias) add_bias(&mamba.convolution.back());
    }
    mamba.input.push_back(tensor(mamba.values_size(), model.hidden));
    mamba.input.push_back(tensor(heads, model.hidden));
    mamba.decay = mamba.step_bias = mamba.skip = tensor(heads, 1);
    mamba.norm = norm(NormKind::rms, mamba.values_size());
    mamba.o.values = tensor(model.hidden, mamba.values_size());
    return model;
}

// Mamba-2, a squared ReLU without a gate, attention, experts of that kind beside a shared one: each
// is a separate layer.
inline Model lone() {
    Model model = state_space(2, 4, 20, 24, true);
    const Layer mamba = model.layers[0], attention = model.layers[1];
    model.layers.assign(4, Layer());
    model.layers[0].before_attention = model.layers[2].before_attention = mamba.before_attention;
    model.layers[0].mixer = mamba.mixer;
    model.layers[2].mixer = attention.mixer;
    for (Layer *layer : {&model.layers[1], &model.layers[3]}) {
        layer->before_feed_forward = attention.before_feed_forward;
        layer->feed = attention.feed;
    }
    Experts &experts = share_experts(&model.layers[3]).experts;
    const auto ungate = [](FeedForward *f) {
        f->activation = Activation::relu_squared;
        f->gate = {};
    };
    for (Layer *layer : {&model.layers[1], &model.layers[3]}) ungate(layer->feed_forward());
    for (FeedForward &expert : experts.each) ungate(&expert);
    Router &router = experts.router;
    router.kind = RouterKind::sigmoid;
    router.correction = tensor(6, 1);
    router.normalised = true;
    router.scale = 1.5F;
    return model;
}

// In no published model: with biases, norms after sublayers and no state; attention first and last.
inline Model lone_attention() {
    Model model = lone();
    model.layers[0] = model.layers[2];
    std::swap(model.layers[2], model.layers[3]);
    const auto biases = [](FeedForward *f) {
        add_bias(&f->up);
        add_bias(&f->down);
    };
    for (Layer &layer : model.layers) {
        layer.residual_scale = 0.6F;
        if (!layer.feeds()) {
            add_bias(&layer.attention()->o);
            continue;
        }
        layer.after_feed_forward = layer.before_feed_forward;
        biases(layer.feed_forward());
        if (layer.experts() == nullptr) continue;
        for (FeedForward &expert : layer.experts()->each) biases(&expert);
    }
    model.layers[3].after_attention = model.layers[3].before_attention;
    return model;
}

inline Model limited_steps() {
    Model model = state_space(2, 4, 20, 24, false);
    Mamba2 &mamba = std::get<Mamba2>(model.layers[0].mixer);
    mamba.least_step = 0.3F;
    mamba.most_step = 0.8F;
    return model;
}

// Mamba-2 beside attention, with multipliers (Falcon-H1); with a norm before its gate, or with none.
inline Model side_by_side(bool normed) {
    Model model = state_space(2, 4, 20, 24, true);
    Layer &alone = model.layers[0], &beside = model.layers[1];
    alone.feed = NoFeed();
    beside.before_attention = Norm();
    beside.beside = true;
    auto &mamba = std::get<Mamba2>(alone.mixer);
    mamba.norm_first = normed;
    if (!normed) mamba.norm = Norm();
    for (size_t i = 0; i < mamba.input.size(); ++i) {
        mamba.input[i].factor = 0.5F + 0.25F * static_cast<float>(i);
    }
    Weight &k = beside.attention()->k;
    add_bias(&k);
    k.values.factor = 0.4F;
    k.bias.factor = 0.7F;
    beside.feed_forward()->down.values.factor = 0.6F;
    model.layers.insert(model.layers.end(), {alone, beside});
    return model;
}

// Attention in chunks, queries that grow with a shifted position, weighed inputs of experts (Llama 4).
inline Model chunks(int32_t size, int32_t chosen = 0) {
    Model model = changed(plain(4, 2, 64), [=](Layer *layer) {
        Router &router = share_experts(layer).experts.router;
        router.kind = RouterKind::sigmoid;
        router.weighs_input = true;
        if (chosen > 0) router.chosen = chosen;
    });
    Attention &all = *model.layers[1].attention(), &chunked = *model.layers[0].attention();
    chunked.window = size;
    chunked.chunked = true;
    all.rope = -1;
    all.long_scale = 0.5F;
    all.long_period = 30;
    all.long_shift = 7;
    return model;
}

// Kimi's delta net, then attention.
inline Model channel_delta(int32_t key_heads, int32_t value_heads, int32_t key_dim,
                           int32_t value_dim, int32_t rank) {
    Model model = plain(4, 2, 64);
    ChannelDeltaNet &net = model.layers[0].mixer.emplace<ChannelDeltaNet>();
    net.key_heads = key_heads;
    net.value_heads = value_heads;
    net.key_dim = key_dim;
    net.value_dim = value_dim;
    net.gate_rank = rank;
    net.width = 4;
    const int64_t parts[] = {net.keys_size(), net.keys_size(), net.values_size()};
    for (const int64_t rows : parts) {
        net.input.push_back(tensor(rows, model.hidden));
        net.convolution.push_back({tensor(rows, net.width), {}});
    }
    for (const int32_t rows : {rank, value_heads, rank}) {
        net.input.push_back(tensor(rows, model.hidden));
    }
    net.a.values = tensor(int64_t{value_heads} * key_dim, rank);
    net.z.values = tensor(net.values_size(), rank);
    net.decay = tensor(value_heads, 1);
    net.step_bias = tensor(int64_t{value_heads} * key_dim, 1);
    net.norm = norm(NormKind::rms, value_dim);
    net.o.values = tensor(model.hidden, net.values_size());
    return model;
}

inline Model latents(int32_t heads, int32_t rank, int32_t turned, int32_t q_rank, bool bias,
                     int32_t plain_dim = 24, int32_t value_dim = 40) {
    Model model = changed(plain(), [&](Layer *layer) {
        Attention &a = layer->mixer.emplace<Attention>();
        Latent &latent = a.latent;
        latent.rank = rank;
        latent.plain = plain_dim;
        latent.turned = turned;
        latent.value_dim = value_dim;
        a.heads = heads;
        a.kv_heads = 1;
        a.head_dim = rank + turned;
        a.rope = 0;
        a.scale = 0.12F;
        const int64_t hidden = 136;
        if (q_rank > 0) {
            latent.q_down.values = tensor(q_rank, hidden);
            latent.q_norm = norm(NormKind::rms, q_rank);
            if (bias) add_bias(&latent.q_down);
        }
        latent.down.values = tensor(rank + turned, hidden);
        if (bias) add_bias(&latent.down);
        latent.norm = norm(NormKind::rms, rank);
        latent.up.values = tensor(int64_t{heads} * (plain_dim + value_dim), rank);
        a.q.values = tensor(int64_t{heads} * latent.query_dim(), q_rank > 0 ? q_rank : hidden);
        a.o.values = tensor(hidden, a.result_size());
    });
    model.ropes[0] = rope(turned);
    model.ropes[0].pairs = turned == 64;
    return model;
}

} // namespace kinds

// Layers with latents.
inline std::vector<LayerKind> latent_layer_kinds() {
    using namespace kinds;
    return {
        {"latents (DeepSeek V2 Lite)", [=] { return latents(4, 48, 16, 0, false); }},
        {"latents of latents of queries (DeepSeek V3)",
         [=] { return latents(20, 512, 64, 72, false); }},
        {"latents of many heads, with biases, queries scaled by position (Mistral Small 4)",
         [=] {
             return changed(latents(72, 200, 64, 40, true), [](Layer *layer) {
                 Attention &a = *layer->attention();
                 a.long_scale = 0.5F;
                 a.long_period = 7;
                 a.long_shift = 3;
             });
         }},
    };
}

// Kinds that only the CPU computes.
inline std::vector<LayerKind> cpu_layer_kinds() {
    using namespace kinds;
    return {
        {"a short convolution of an odd size with biases behind attention",
         [] { return convolution(false, 4, 100, true); }},
        {"a short convolution over many tokens", [] { return convolution(true, 7, 136, false); }},
        {"a delta net that decays by channel, gates of an odd size",
         [] { return channel_delta(2, 4, 20, 24, 12); }},
    };
}

// Layers with states, layers with one sublayer each, and other activations.
inline std::vector<LayerKind> state_layer_kinds() {
    using namespace kinds;
    const auto convolved_experts = [] {
        Model model = convolution(true, 3, 136, false);
        Router &router = set_experts(&model.layers[0]).router;
        router.kind = RouterKind::sigmoid;
        router.normalised = true;
        router.epsilon = 0.2F;
        return model;
    };
    return {
        {"a delta net, then attention with an output gate (Qwen3.5)",
         [] { return hybrid(true, 2, 4); }},
        {"a delta net behind attention", [] { return hybrid(false, 3, 3); }},
        {"a delta net with heads of 128", [] { return hybrid(true, 1, 2, 128, 128); }},
        {"a delta net that decays by channel (Kimi Linear)",
         [] { return channel_delta(2, 4, 20, 24, 16); }},
        {"a delta net that decays by channel, heads of 128",
         [] { return channel_delta(1, 1, 128, 128, 128); }},
        {"a short convolution, then attention (LFM2)",
         [] { return convolution(true, 3, 136, false); }},
        {"a short convolution over two tokens", [] { return convolution(true, 2, 264, false); }},
        {"a short convolution with biases behind attention",
         [] { return convolution(false, 4, 104, true); }},
        {"a short convolution before experts (LFM2-MoE)", convolved_experts},
        {"Mamba-2, then attention (Granite 4)", [] { return state_space(1, 6, 128, 64, true); }},
        {"Mamba-2 of two groups, steps within limits", limited_steps},
        {"Mamba-2 without a norm beside attention (Falcon-H1)", [] { return side_by_side(false); }},
        {"Mamba-2 with a norm before its gate beside attention", [] { return side_by_side(true); }},
        {"layers of one thing each, the last one experts (Nemotron 3)", lone},
        {"layers of one thing each, the last one Mamba-2",
         [] {
             Model model = lone();
             std::reverse(model.layers.begin(), model.layers.end());
             return model;
         }},
        {"layers of one thing each, with biases and norms behind", lone_attention},
        {"xIELU without a gate (Apertus)",
         [] {
             return changed(plain(), [](Layer *layer) {
                 FeedForward &f = *layer->feed_forward();
                 f.activation = Activation::xielu;
                 f.gate = {};
                 f.rise = f.fall = tensor(1, 1);
             });
         }},
        {"a squared ReLU of a gate",
         [] {
             return changed(plain(), [](Layer *layer) {
                 layer->feed_forward()->activation = Activation::relu_squared;
             });
         }},
    };
}

inline std::vector<LayerKind> layer_kinds() {
    using namespace kinds;
    const auto granite = [] {
        Model model = changed(plain(), [](Layer *layer) {
            layer->residual_scale = 0.22F;
            layer->attention()->scale = 0.05F;
            add_bias(&layer->attention()->o);
            add_bias(&layer->feed_forward()->down);
        });
        model.embedding_scale = 3;
        model.logits_scale = 0.125F;
        return model;
    };
    const auto granite_scaled = [=] {
        return changed(granite(), [](Layer *layer) { layer->scalar = tensor(1, 1); });
    };
    const auto norms_whole = [](Layer *layer) {
        Attention &a = *layer->attention();
        a.norm_whole = true;
        a.q_norm = norm(NormKind::rms, a.q_size());
        a.k_norm = norm(NormKind::rms, a.kv_size());
    };
    const auto norms_after = [=](Layer *layer) {
        norm_after(layer);
        layer->before_attention = layer->before_feed_forward = Norm();
        norms_whole(layer);
    };
    const auto glm = [] {
        Model model = changed(plain(4, 2, 128), [](Layer *layer) {
            norm_after(layer);
            for (Weight *w :
                 {&layer->attention()->q, &layer->attention()->k, &layer->attention()->v}) {
                add_bias(w);
            }
        });
        model.ropes[0] = rope(64);
        model.ropes[0].pairs = true;
        return model;
    };
    const auto phi = [](int32_t head_dim, int32_t dims) {
        Model model = plain(4, 4, head_dim);
        model.ropes[0] = rope(dims);
        model.ropes[0].scale = 1.19F;
        return model;
    };
    const auto head_norms = [](Layer *layer) { add_head_norms(NormKind::rms, layer); };
    const auto turned_norms = [](Layer *layer) {
        add_head_norms(NormKind::rms, layer);
        layer->attention()->norm_turned = true;
    };
    const auto own_gates = [](Layer *layer) {
        Attention &a = *layer->attention();
        a.gated = true;
        a.gate.values = tensor(a.q_size(), a.q.columns());
        add_bias(&a.gate);
    };
    const auto sinks = [](Layer *layer) {
        layer->attention()->sinks = tensor(layer->attention()->heads, 1);
        layer->attention()->window = 25;
    };
    const auto long_scale = [](Layer *layer) {
        layer->attention()->long_scale = 0.5F;
        layer->attention()->long_period = 30;
    };
    std::vector<LayerKind> all = {
        {"plain (Llama)", [] { return plain(); }},
        {"windows (Mistral)",
         [] { return changed(plain(), [](Layer *l) { l->attention()->window = 33; }); }},
        {"norms of each head (Qwen3)", [=] { return changed(plain(4, 1, 128), head_norms); }},
        {"norms before and after, caps (Gemma 2)", [] { return gemma(true); }},
        {"norms before and after, two ropes (Gemma 3)", [] { return gemma(false); }},
        {"norms after alone, of the whole projection (OLMo 2)",
         [=] { return changed(plain(), norms_after); }},
        {"norms of the whole projection, heads padded",
         [=] { return changed(plain(3, 3, 72), norms_whole); }},
        {"side by side, LayerNorm, pairs and no rope (Cohere2)", cohere},
        {"LayerNorm, biases, no gate (StarCoder2)", starcoder},
        {"multipliers (Granite)", granite},
        {"multipliers, biases, scaled layers", granite_scaled},
        {"half of a head turns, in pairs (GLM-4)", glm},
        {"part of a head turns, scaled (Phi-4)", [=] { return phi(128, 96); }},
        {"part of a head turns, not by eights", [=] { return phi(80, 20); }},
        {"heads of an odd size", [] { return plain(3, 1, 50); }},
        {"heads of 256", [] { return plain(2, 1, 256); }},
        {"heads of 512", [] { return plain(2, 1, 512); }},
        {"norms of each head behind the rope (Hunyuan)",
         [=] { return changed(plain(4, 1, 128), turned_norms); }},
        {"gates of a matrix of their own (AFMoE)", [=] { return changed(plain(), own_gates); }},
        {"sinks (gpt-oss)", [=] { return changed(plain(8, 1, 64), sinks); }},
        {"queries scaled by their position (Ministral 3)",
         [=] { return changed(plain(), long_scale); }},
        {"layers of two shapes", two_shapes},
        {"shared keys and values, layer inputs (Gemma 4)", [] { return gemma4(true); }},
        {"shared keys and values, scaled layers (Gemma 4)", [] { return gemma4(false); }},
        {"attention in chunks, weighed inputs of experts (Llama 4)", [] { return chunks(20); }},
        {"attention in chunks of more than a page, weighed inputs of one expert",
         [] { return chunks(72, 1); }},
        {"experts alone, a norm after", experts_alone},
        {"experts of a sparse mixer (Phi-3.5-MoE)",
         [] {
             return changed(plain(), [](Layer *layer) {
                 Router &router = set_experts(layer).router;
                 router.kind = RouterKind::sparse_mixer;
                 router.chosen = 2;
                 router.jitter = 0.3F;
             });
         }},
        {"experts and a gated shared one (Qwen2-MoE)", shared_expert},
        {"experts with biases and a clamped SwiGLU (gpt-oss)", biased_experts},
        {"experts and a feed-forward between norms of their own (Gemma 4)",
         [] { return changed(gemma4(false), share_normed_experts); }},
        {"experts and a feed-forward between norms, layer inputs",
         [] { return changed(gemma4(true), share_normed_experts); }},
        {"experts and some norms of their own", some_normed_experts},
        {"a tied head with a bias",
         [] {
             Model model = plain();
             model.tied = true;
             add_bias(&model.head);
             return model;
         }},
        {"all at once", crowd},
    };
    const std::vector<LayerKind> more = state_layer_kinds();
    all.insert(all.end(), more.begin(), more.end());
    return all;
}

} // namespace batchllm
