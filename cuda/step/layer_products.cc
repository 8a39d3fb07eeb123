#include "step/layer_products.h"

#include <algorithm>

namespace batchllm::cuda {

std::vector<StepProduct> layer_products(const StepParts &parts, Products *products, size_t layer) {
    const DeviceLayer &w = parts.layer(layer);
    const Layer &described = parts.model.layers[layer];
    const Activations &buffers = parts.activations;
    const DType element = parts.element(), residual = parts.options.residual;
    const float scale = described.residual_scale;
    // What ends a sublayer: added to the residual stream, or a delta.
    const auto end = [&](const Matrix &matrix, const Input &x, const DeviceNorm &after, float alpha,
                         bool divided = true) {
        const bool delta = after || (divided && parts.options.rank) || !products->adds(matrix);
        return StepProduct{matrix,   x,      delta ? buffers.delta.data() : buffers.residual.data(),
                           residual, !delta, alpha};
    };
    const Input normed{buffers.normed.data(), buffers.normed_scales.as<float>()};
    const Input attended{w.o.scaling == Scaling::none ? buffers.attended.data()
                                                      : buffers.qkv.data(),
                         buffers.attended_scales.as<float>()};
    const Input activated{buffers.activated.data(), buffers.activated_scales.as<float>()};
    std::vector<StepProduct> all;
    if (described.mixes()) {
        all.push_back({w.qkv, normed, buffers.qkv.data(), element, false});
        if (const auto *latent = std::get_if<DeviceLatent>(&w.mixer)) {
            if (latent->q.rows > 0) {
                all.push_back({latent->q, Input(buffers.latent_normed.data()),
                               buffers.latent_of_down.data(), element, false});
            }
        }
        if (const auto *net = std::get_if<DeviceDelta>(&w.mixer); net && net->a.rows > 0) {
            const StepStates::ChannelGates gates = parts.states.channel_gates();
            all.push_back({net->z, gates.of_z, gates.z, element, false});
            all.push_back({net->a, gates.of_a, gates.a, element, false});
        }
        all.push_back(end(w.o, attended, w.after_attention, scale));
    }
    const Experts *experts = described.experts();
    if (const FeedForward *f = described.feed_forward()) {
        all.push_back(
            {w.gate_up, normed, buffers.gate_up.data(), element, false, 1, f->activation});
        all.push_back(experts != nullptr
                          ? StepProduct{w.down, activated, buffers.delta.data(), residual, false}
                          : end(w.down, activated, w.after_feed_forward, scale));
    }
    if (experts != nullptr) {
        const Input x = w.experts.in_e4m3() ? Input(buffers.normed_whole.data()) : normed;
        all.push_back({w.experts.router, x, parts.experts.logits(), DType::f32, false,
                       experts->router.logits_scale});
    }
    if (parts.model.layer_inputs) {
        all.push_back({w.input_gate, normed, buffers.gate_up.data(), element, false});
        all.push_back(end(w.input_down, activated, w.after_input, 1, false));
    }
    return all;
}

StepForm loaded_form(const StepParts &parts, Products *products) {
    StepForm form = step_form(parts.model, parts.options);
    const auto take = [](const Matrix &w, int64_t *most) {
        const int64_t scales = w.scaling == Scaling::none   ? 0
                               : w.scaling == Scaling::rows ? 1
                                                            : w.columns / kScaleBlock;
        *most = std::max(*most, scales);
    };
    const Matrix &head = parts.weights.head;
    if (head.packing && head.packing->ordered) form.taken = head.columns;
    for (const DeviceLayer &layer : parts.weights.layers) {
        take(layer.qkv, &form.normed_scales);
        take(layer.gate_up, &form.normed_scales);
        take(layer.o, &form.attended_scales);
        take(layer.down, &form.activated_scales);
        for (const Matrix *w : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) {
            if (!w->packing) continue;
            if (w->packing->ordered) form.taken = std::max(form.taken, w->columns);
            if (parts.options.reproducible) continue;
            form.expanded = std::max(form.expanded, w->rows * w->columns);
        }
        form.deltas = form.deltas || (!layer.after_attention && !products->adds(layer.o)) ||
                      (!layer.after_feed_forward && !products->adds(layer.down));
        if (!layer.experts.in_e4m3()) continue;
        form.experts_in_e4m3 = true;
        form.normed_scales = std::max(form.normed_scales, scale_groups(parts.model.hidden));
    }
    return form;
}

Status prepare_in_order(const StepParts &parts, Products *products) {
    const DeviceWeights &weights = parts.weights;
    std::vector<Products::InOrder> wanted;
    for (size_t i = 0; i < weights.layers.size(); ++i) {
        for (const StepProduct &p : layer_products(parts, products, i)) {
            wanted.push_back({p.w, p.y_type, p.accumulate, p.alpha, parts.rows});
            // What a layer's scalar multiplies is a delta first.
            if (p.accumulate && weights.layers[i].scalar != nullptr) {
                wanted.push_back({p.w, p.y_type, false, 1, parts.rows});
            }
        }
    }
    if (parts.model.layer_inputs) {
        wanted.push_back({weights.input_projection, parts.element(), false, 1, parts.rows});
    }
    if (weights.head.rows > 0) {
        wanted.push_back({weights.head, DType::f32, false, 1, parts.activations.logits_rows});
    }
    return products->prepare_in_order(wanted);
}

Status prepare_products(const StepParts &parts, Products *products, cudaStream_t stream) {
    if (parts.options.reproducible) return {}; // done
    const Matrix &head = parts.weights.head;
    for (int64_t rows = 1; rows <= parts.rows; rows = padded_rows(rows) + 1) {
        for (size_t i = 0; i < parts.weights.layers.size(); ++i) { // those of one shape share it
            for (const StepProduct &p : layer_products(parts, products, i)) {
                RETURN_IF_ERROR(products->prepare(p, rows, stream));
            }
        }
        if (rows > parts.activations.logits_rows || head.rows == 0) continue;
        RETURN_IF_ERROR(products->prepare({head, parts.activations.normed.data(),
                                           parts.activations.logits.data(), DType::f32, false},
                                          rows, stream));
    }
    return check_cuda(cudaStreamSynchronize(stream), "products");
}

Status run_products(StepParts *parts, Products *products, const ResidualStream &residual,
                    int64_t tokens, int64_t wanted, cudaStream_t stream) {
    const Activations &buffers = parts->activations;
    const size_t layers = parts->weights.layers.size();
    for (size_t i = 0; i < layers; ++i) {
        const DeviceLayer &w = parts->layer(i);
        const bool last = i + 1 == layers;
        // Of the last layer, those that begin its mixer are of all tokens, what follows is of the wanted ones.
        bool begins = w.mixes();
        for (const StepProduct &p : layer_products(*parts, products, i)) {
            begins = begins && &p.w != &w.o;
            RETURN_IF_ERROR(products->run(p, last && !begins ? wanted : tokens, stream));
        }
        if (!w.experts) continue;
        const ResidualStream::Ending ending{w.down, nullptr, nullptr,       {},
                                            1,      nullptr, Scaling::none, Part::combine};
        const StepRows rows{buffers.residual.data(), last ? wanted : tokens, nullptr};
        const AddNormArguments end = residual.addition(ending, rows);
        RETURN_IF_ERROR(
            parts->experts.run(parts->model.layers[i], w.experts,
                               Input(buffers.normed.data(), buffers.normed_scales.as<float>()),
                               {&end, 1}, nullptr, &parts->profile, stream));
    }
    if (parts->weights.head.rows == 0) return {};
    const int64_t chunk = buffers.logits_rows;
    for (int64_t first = 0; first < wanted; first += chunk) {
        RETURN_IF_ERROR(products->run(
            {parts->weights.head, buffers.normed.data(), buffers.logits.data(), DType::f32, false},
            std::min(chunk, wanted - first), stream));
    }
    return {};
}

} // namespace batchllm::cuda
