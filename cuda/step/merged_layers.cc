#include "step/merged_layers.h"

#include <utility>

namespace batchllm::cuda {
namespace {

// The matrix of a product by number; null: it is none that can be merged. Of const layers or of others.
template <typename Layers> auto *matrix_of(Layers &layers, size_t product) {
    const size_t layer = product / kLayerProducts;
    decltype(&layers[0].qkv) matrix = nullptr;
    if (layer >= layers.size()) return matrix;
    const auto of_layer = static_cast<LayerProduct>(product % kLayerProducts);
    switch (of_layer) {
    case LayerProduct::first:
        matrix = &layers[layer].qkv;
        break;
    case LayerProduct::last:
        matrix = &layers[layer].o;
        break;
    case LayerProduct::gate_up:
        matrix = &layers[layer].gate_up;
        break;
    case LayerProduct::down:
        matrix = &layers[layer].down;
        break;
    case LayerProduct::gates:
    case LayerProduct::decays:
        if (auto *net = std::get_if<DeviceDelta>(&layers[layer].mixer)) {
            matrix = of_layer == LayerProduct::gates ? &net->z : &net->a;
        }
        break;
    case LayerProduct::router:
    case LayerProduct::queries:
        break;
    }
    const bool plain = matrix != nullptr && matrix->rows > 0 && matrix->scaling == Scaling::none &&
                       !matrix->packing;
    return plain ? matrix : nullptr;
}

int64_t bytes_of(const Matrix &w, DType element) {
    constexpr int64_t align = 256;
    return (w.rows * w.columns * dtype_bytes(element) + align - 1) / align * align;
}

} // namespace

int64_t MergedLayers::bytes(const std::vector<DeviceLayer> &layers,
                            const std::vector<bool> &changed, DType element) {
    int64_t all = 0;
    for (size_t i = 0; i < changed.size(); ++i) {
        const Matrix *w = changed[i] ? matrix_of(layers, i) : nullptr;
        if (w != nullptr) all += bytes_of(*w, element);
    }
    return all;
}

void MergedLayers::place(int32_t slot, const std::vector<DeviceLayer> &layers,
                         const AdaptedModel &model, const std::vector<bool> &changed, DType element,
                         DeviceMemory memory) {
    clear();
    slot_ = slot;
    memory_ = std::move(memory);
    std::byte *next = memory_.data();
    layers_ = layers;
    left_.assign(model.products(), false);
    for (size_t i = 0; i < changed.size(); ++i) {
        if (!changed[i]) continue;
        Matrix *w = matrix_of(layers_, i);
        if (w == nullptr) {
            left_[model.product(i).launch] = leaves_any_ = true;
            continue;
        }
        w->data = next;
        next += bytes_of(*w, element);
        merged_.push_back(i);
    }
}

Status MergedLayers::launch(const std::vector<DeviceLayer> &layers, const AdaptedModel &model,
                            DType element, const AdapterEntry *entries, cudaStream_t stream) const {
    for (const size_t i : merged_) {
        const Matrix &w = *matrix_of(layers, i);
        AdapterMerge merge{element,
                           entries + i,
                           w.data,
                           const_cast<void *>(matrix_of(layers_, i)->data),
                           static_cast<int32_t>(w.rows),
                           static_cast<int32_t>(w.columns),
                           0,
                           {}};
        merge.parts = model.product(i).firsts(merge.first);
        RETURN_IF_CUDA(launch_adapter_merge(merge, stream));
    }
    return {};
}

} // namespace batchllm::cuda
