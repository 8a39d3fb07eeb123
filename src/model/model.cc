#include "model/model.h"

namespace batchllm {
namespace {

template <typename M, typename Visit> void visit_norm(M *norm, const Visit &visit) {
    visit(&norm->weight);
    visit(&norm->bias);
}

template <typename M, typename Visit> void visit_weight(M *weight, const Visit &visit) {
    visit(&weight->values);
    visit(&weight->bias);
}

// M: Model, or const Model.
template <typename M, typename Visit> void visit_tensors(M *model, const Visit &visit) {
    visit(&model->embedding);
    if (!model->tied) visit_weight(&model->head, visit);
    for (auto &layer : model->layers) {
        for (auto *norm : {&layer.before_attention, &layer.after_attention,
                           &layer.before_feed_forward, &layer.after_feed_forward}) {
            visit_norm(norm, visit);
        }
        auto &attention = layer.attention;
        for (auto *w : {&attention.q, &attention.k, &attention.v, &attention.o}) {
            visit_weight(w, visit);
        }
        visit_norm(&attention.q_norm, visit);
        visit_norm(&attention.k_norm, visit);
        visit(&attention.sinks);
        auto &feed_forward = layer.feed_forward;
        for (auto *w : {&feed_forward.gate, &feed_forward.up, &feed_forward.down}) {
            visit_weight(w, visit);
        }
    }
    visit_norm(&model->final_norm, visit);
}

} // namespace

void for_each_tensor(const Model &model, const std::function<void(const Tensor &)> &visit) {
    visit_tensors(&model, [&](const Tensor *tensor) {
        if (*tensor) visit(*tensor);
    });
}

void for_each_tensor(Model *model, const std::function<void(Tensor *)> &visit) {
    visit_tensors(model, [&](Tensor *tensor) {
        if (*tensor) visit(tensor);
    });
}

int64_t Model::weight_bytes() const {
    int64_t total = 0;
    for_each_tensor(*this, [&](const Tensor &tensor) { total += tensor.bytes(); });
    return total;
}

void place_keys_and_values(Model *model) {
    KvGroup all;
    for (size_t i = 0; i < model->layers.size(); ++i) {
        Attention &attention = model->layers[i].attention;
        attention.kv_group = 0;
        attention.kv_plane = static_cast<int32_t>(i);
        all.layers.push_back(static_cast<int32_t>(i));
    }
    model->kv_groups = {std::move(all)};
}

} // namespace batchllm
