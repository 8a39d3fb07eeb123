#include "model/model.h"

#include <algorithm>

#include "base/visit.h"
#include "model/tower.h"

namespace batchllm {
namespace {

using Visit = std::function<void(Tensor *)>;

void visit_norm(Norm *norm, const Visit &visit) {
    visit(&norm->weight);
    if (norm->kind == NormKind::layer) visit(&norm->bias);
}

void visit_weight(Weight *weight, const Visit &visit) {
    visit(&weight->values);
    visit(&weight->bias);
}

void visit_feed_forward(FeedForward *feed_forward, const Visit &visit) {
    for (Weight *w : {&feed_forward->gate, &feed_forward->up, &feed_forward->down}) {
        visit_weight(w, visit);
    }
    visit(&feed_forward->rise);
    visit(&feed_forward->fall);
}

void visit_experts(Experts *experts, const Visit &visit) {
    Router &router = experts->router;
    for (Norm *norm : {&router.norm, &experts->before, &experts->after}) visit_norm(norm, visit);
    visit_weight(&router.weight, visit);
    visit(&router.correction);
    visit(&router.expert_scale);
    for (FeedForward &expert : experts->each) visit_feed_forward(&expert, visit);
}

void visit_linear_attention(LinearAttention *layer, const Visit &visit) {
    for (Tensor &part : layer->input) visit(&part);
    for (Weight &part : layer->convolution) visit_weight(&part, visit);
    visit(&layer->decay);
    visit(&layer->step_bias);
    visit_norm(&layer->norm, visit);
    visit_weight(&layer->o, visit);
}

void visit_mixer(Mixer *mixer, const Visit &visit) {
    std::visit(Visitor{[](NoMixer &) {},
                       [&](Attention &a) {
                           for (Weight *w : {&a.q, &a.k, &a.v, &a.gate, &a.o}) {
                               visit_weight(w, visit);
                           }
                           for (Weight *w : {&a.latent.q_down, &a.latent.down, &a.latent.up}) {
                               visit_weight(w, visit);
                           }
                           for (Norm *n : {&a.q_norm, &a.k_norm, &a.v_norm, &a.latent.q_norm,
                                           &a.latent.norm}) {
                               visit_norm(n, visit);
                           }
                           visit(&a.sinks);
                       },
                       [&](DeltaNet &net) { visit_linear_attention(&net, visit); },
                       [&](ChannelDeltaNet &net) {
                           visit_linear_attention(&net, visit);
                           visit_weight(&net.a, visit);
                           visit_weight(&net.z, visit);
                       },
                       [&](Mamba2 &mamba) {
                           visit_linear_attention(&mamba, visit);
                           visit(&mamba.skip);
                       },
                       [&](ShortConvolution &c) {
                           for (Weight *w : {&c.b, &c.c, &c.x, &c.filter, &c.o}) {
                               visit_weight(w, visit);
                           }
                       }},
               *mixer);
}

void visit_feed(Feed *feed, const Visit &visit) {
    std::visit(Visitor{[](NoFeed &) {},
                       [&](FeedForward &alone) { visit_feed_forward(&alone, visit); },
                       [&](Experts &alone) { visit_experts(&alone, visit); },
                       [&](SharedExperts &both) {
                           visit_norm(&both.after, visit);
                           visit_feed_forward(&both.shared, visit);
                           visit_experts(&both.experts, visit);
                           visit_weight(&both.gate, visit);
                       }},
               *feed);
}

void visit_layer(Layer *layer, const Visit &visit) {
    for (Norm *norm :
         {&layer->before_attention, &layer->after_attention, &layer->before_feed_forward,
          &layer->after_feed_forward, &layer->after_input}) {
        visit_norm(norm, visit);
    }
    visit_mixer(&layer->mixer, visit);
    visit_feed(&layer->feed, visit);
    visit_weight(&layer->input.gate, visit);
    visit_weight(&layer->input.down, visit);
    visit(&layer->scalar);
}

void visit_tensors(Model *model, const Visit &visit) {
    visit(&model->embedding);
    if (!model->tied) visit(&model->head.values);
    visit(&model->head.bias); // not shared even if the head is tied
    visit(&model->layer_inputs.embedding);
    visit_weight(&model->layer_inputs.projection, visit);
    visit_norm(&model->layer_inputs.norm, visit);
    for (Layer &layer : model->layers) visit_layer(&layer, visit);
    visit_norm(&model->final_norm, visit);
    visit_weight(&model->classifier, visit);
}

void visit_merger(Merger *merger, const Visit &visit) {
    visit_norm(&merger->norm, visit);
    visit_norm(&merger->merged_norm, visit);
    visit_weight(&merger->projection, visit);
    visit_feed_forward(&merger->feed_forward, visit);
}

void visit_tensors(Tower *tower, const Visit &visit) {
    visit_weight(&tower->patch, visit);
    visit(&tower->positions);
    visit_norm(&tower->before, visit);
    for (Layer &layer : tower->layers) visit_layer(&layer, visit);
    visit_norm(&tower->after, visit);
    visit_merger(&tower->merger, visit);
    for (DeepstackMerger &deepstack : tower->deepstack) visit_merger(&deepstack.merger, visit);
}

// Layers of one kind can be in one KV group.
struct LayerKind {
    int32_t window, kv_heads, head_dim;
    bool latent;
    std::vector<int32_t> layers;
};

std::vector<LayerKind> kinds_of_layers(const Model &model) {
    std::vector<LayerKind> kinds;
    for (size_t i = 0; i < model.layers.size(); ++i) {
        const Attention *a = model.layers[i].attention();
        if (a == nullptr || a->kv_layer >= 0) continue;
        // A window that no request outgrows counts as none.
        const int32_t window = a->window < model.max_positions ? a->window : 0;
        auto kind = std::find_if(kinds.begin(), kinds.end(), [&](const LayerKind &known) {
            return known.window == window && known.kv_heads == a->kv_heads &&
                   known.head_dim == a->head_dim && known.latent == bool(a->latent);
        });
        if (kind == kinds.end()) {
            kinds.push_back({window, a->kv_heads, a->head_dim, bool(a->latent), {}});
            kind = kinds.end() - 1;
        }
        kind->layers.push_back(static_cast<int32_t>(i));
    }
    return kinds;
}

// The number of planes per page for which a request of 8,192 tokens takes the least memory; ties:
// the largest number, since it makes fewer groups.
size_t choose_planes(const std::vector<LayerKind> &kinds, int32_t max_positions) {
    constexpr size_t most_groups = 16;
    const int64_t tokens = std::min(max_positions, 8192);
    size_t most = 0;
    for (const LayerKind &kind : kinds) most = std::max(most, kind.layers.size());
    size_t best = most;
    int64_t least = INT64_MAX;
    for (size_t planes = most; planes > 0; --planes) {
        size_t groups = 0;
        int64_t slots = 0; // plane slots
        for (const LayerKind &kind : kinds) {
            const size_t of_kind = (kind.layers.size() + planes - 1) / planes;
            const int64_t kept = kind.window == 0 ? tokens : std::min<int64_t>(kind.window, tokens);
            groups += of_kind;
            slots += static_cast<int64_t>(of_kind * planes) * kept;
        }
        if (groups > std::max(most_groups, kinds.size()) || slots >= least) continue;
        least = slots;
        best = planes;
    }
    return best;
}

} // namespace

void for_each_tensor(const Model &model, const std::function<void(const Tensor &)> &visit) {
    // Walking changes nothing.
    for_each_tensor(const_cast<Model *>(&model), [&](Tensor *tensor) { visit(*tensor); });
}

void for_each_tensor(Model *model, const std::function<void(Tensor *)> &visit) {
    visit_tensors(model, [&](Tensor *tensor) {
        if (*tensor) visit(tensor);
    });
}

void for_each_tensor(const Tower &tower, const std::function<void(const Tensor &)> &visit) {
    for_each_tensor(const_cast<Tower *>(&tower), [&](Tensor *tensor) { visit(*tensor); });
}

void for_each_tensor(Tower *tower, const std::function<void(Tensor *)> &visit) {
    visit_tensors(tower, [&](Tensor *tensor) {
        if (*tensor) visit(tensor);
    });
}

int64_t Model::weight_bytes() const {
    int64_t total = 0;
    for_each_tensor(*this, [&](const Tensor &tensor) { total += tensor.bytes(); });
    return total;
}

int32_t Model::kv_planes() const {
    size_t planes = 0;
    for (const KvGroup &group : kv_groups) planes = std::max(planes, group.layers.size());
    return static_cast<int32_t>(planes);
}

std::vector<int32_t> Model::kv_windows() const {
    std::vector<int32_t> windows;
    for (const KvGroup &group : kv_groups) windows.push_back(group.window);
    return windows;
}

int64_t Model::state_size() const {
    int64_t size = 0;
    for (const Layer &layer : layers) size += layer.state_size();
    return size;
}

bool Model::has_experts() const {
    return std::any_of(layers.begin(), layers.end(),
                       [](const Layer &layer) { return layer.experts() != nullptr; });
}

const LinearAttention *Layer::linear_attention() const {
    using Found = const LinearAttention *;
    return std::visit(Visitor{[](const NoMixer &) { return Found(); },
                              [](const Attention &) { return Found(); },
                              [](const LinearAttention &linear) { return &linear; },
                              [](const ShortConvolution &) { return Found(); }},
                      mixer);
}

const FeedForward *Layer::feed_forward() const {
    using Found = const FeedForward *;
    return std::visit(Visitor{[](const NoFeed &) { return Found(); },
                              [](const FeedForward &alone) { return &alone; },
                              [](const Experts &) { return Found(); },
                              [](const SharedExperts &both) { return &both.shared; }},
                      feed);
}

const Experts *Layer::experts() const {
    using Found = const Experts *;
    return std::visit(Visitor{[](const NoFeed &) { return Found(); },
                              [](const FeedForward &) { return Found(); },
                              [](const Experts &alone) { return &alone; },
                              [](const SharedExperts &both) { return &both.experts; }},
                      feed);
}

int64_t Layer::state_size() const {
    return std::visit(
        Visitor{[](const NoMixer &) { return int64_t{0}; },
                [](const Attention &) { return int64_t{0}; },
                [](const LinearAttention &linear) { return linear.state_size(); },
                [](const ShortConvolution &convolution) { return convolution.state_size(); }},
        mixer);
}

void place_keys_and_values(Model *model) {
    const std::vector<LayerKind> kinds = kinds_of_layers(*model);
    const size_t planes = choose_planes(kinds, model->max_positions);
    model->kv_groups.clear();
    for (const LayerKind &kind : kinds) {
        for (size_t i = 0; i < kind.layers.size(); ++i) {
            if (i % planes == 0) model->kv_groups.push_back({kind.window, {}});
            KvGroup &group = model->kv_groups.back();
            Attention &attention = *model->layers[static_cast<size_t>(kind.layers[i])].attention();
            attention.kv_group = static_cast<int32_t>(model->kv_groups.size()) - 1;
            attention.kv_plane = static_cast<int32_t>(group.layers.size());
            group.layers.push_back(kind.layers[i]);
        }
    }
    for (Layer &layer : model->layers) {
        Attention *a = layer.attention();
        if (a == nullptr || a->kv_layer < 0) continue;
        const Attention &source = *model->layers[static_cast<size_t>(a->kv_layer)].attention();
        a->kv_group = source.kv_group;
        a->kv_plane = source.kv_plane;
    }
}

} // namespace batchllm
