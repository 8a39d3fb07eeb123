#include "backend/sim/device_memory.h"

#include <algorithm>

#include "backend/gpu/packed_fit.h"
#include "backend/gpu/state_chunks.h"
#include "backend/gpu/tower_buffers.h"
#include "model/tower.h"

namespace batchllm {
namespace {

// On an H200, derived from the number of pages left there (docs/lab/engine.md): the context,
// kernels, and what the driver keeps.
constexpr int64_t driver_bytes = int64_t{1151} << 20;
// On a CPU, it only has to be the same for measuring a device and for predicting a job.
constexpr int64_t cpu_bytes = int64_t{2} << 30;

// Calls act(layer, rows, columns, matrices) with those that are in e4m3; matrices: experts, or 1.
template <typename Act>
void for_each_scaled(const Model &model, Quantize quantize, const Act &act) {
    for (size_t i = 0; i < model.layers.size(); ++i) {
        const Layer &layer = model.layers[i];
        const ScaledLayer scaled = scaled_layer(model, i, quantize);
        if (scaled.first) act(layer, first_rows(layer.mixer), model.hidden, 1);
        if (scaled.last) act(layer, model.hidden, last_columns(layer.mixer), 1);
        const auto feed = [&](const FeedForward &f, bool gate_up, bool down, size_t matrices) {
            const auto count = static_cast<int64_t>(matrices);
            if (gate_up) act(layer, f.gate.rows() + f.up.rows(), model.hidden, count);
            if (down) act(layer, model.hidden, f.width, count);
        };
        if (const FeedForward *f = layer.feed_forward()) feed(*f, scaled.gate_up, scaled.down, 1);
        if (const Experts *experts = layer.experts()) {
            feed(experts->each.front(), scaled.experts, scaled.experts, experts->each.size());
        }
    }
}

} // namespace

void for_each_packed(const Model &model, DType element, const ActOnPacked &act) {
    for (const Layer &layer : model.layers) {
        const PackedLayer packed = packed_layer(model, layer, element);
        const auto one = [&](const std::optional<Packing> &packing, int64_t rows, int64_t columns,
                             int64_t matrices) {
            if (packing) act(layer, rows, columns, *packing, matrices);
        };
        one(packed.first, first_rows(layer.mixer), model.hidden, 1);
        one(packed.last, model.hidden, last_columns(layer.mixer), 1);
        const auto feed = [&](const FeedForward &f, const std::optional<Packing> &gate_up,
                              const std::optional<Packing> &down, int64_t matrices) {
            one(gate_up, f.gate.rows() + f.up.rows(), model.hidden, matrices);
            one(down, model.hidden, f.width, matrices);
        };
        if (const FeedForward *f = layer.feed_forward()) feed(*f, packed.gate_up, packed.down, 1);
        if (const Experts *experts = layer.experts()) {
            feed(experts->each.front(), packed.experts_gate_up, packed.experts_down,
                 static_cast<int64_t>(experts->each.size()));
        }
    }
}

WeightBytes weight_bytes(const DeviceCosts &costs, const Model &model, DType element,
                         Quantize quantize) {
    int64_t elements = 0;
    for_each_tensor(model, [&](const Tensor &tensor) { elements += tensor.rows * tensor.columns; });
    for (const Layer &layer : model.layers) {
        const Attention *a = layer.attention();
        if (!costs.gpu || a == nullptr || a->latent) continue;
        const int64_t rows = a->q.rows() + a->k.rows() + a->v.rows(); // heads are padded
        elements += (first_rows(layer.mixer) - rows + last_columns(layer.mixer) - a->q_size()) *
                    model.hidden;
    }
    WeightBytes bytes{elements * dtype_bytes(element), 0};
    if (model.tower != nullptr) bytes.all += tower_weight_bytes(*model.tower, element);
    if (!costs.gpu) return bytes;
    if (element != DType::f32) {
        for_each_scaled(
            model, quantize, [&](const Layer &, int64_t rows, int64_t columns, int64_t matrices) {
                constexpr int64_t scale_bytes = 4; // a row's
                bytes.all -= matrices * rows * (columns * (dtype_bytes(element) - 1) - scale_bytes);
            });
    }
    if (quantize == Quantize::none) return bytes;
    for_each_packed(model, element,
                    [&](const Layer &, int64_t rows, int64_t columns, const Packing &packing,
                        int64_t matrices) {
                        const int64_t packed = matrices * packed_bytes(packing.form, rows, columns);
                        bytes.in_four_bits += packed;
                        bytes.all += packed - matrices * rows * columns * dtype_bytes(element);
                    });
    return bytes;
}

StepForm form_on_gpu(const Model &model, const std::string &compute_type, bool reproducible,
                     Quantize quantize) {
    const bool any = compute_type.empty() || compute_type == "auto";
    StepForm form;
    if (compute_type == "f32") form.element = DType::f32;
    if (compute_type == "f16" || (any && model.dtype == DType::f16)) form.element = DType::f16;
    form.residual = residual_type(form.element);
    if (reproducible) form.partials = reproducible_partials(model);
    form.state_chunks = goes_in_chunks(model, form.element, reproducible);
    if (quantize == Quantize::none) return form;
    for_each_packed(model, form.element,
                    [&](const Layer &, int64_t rows, int64_t columns, const Packing &packing,
                        int64_t matrices) {
                        if (matrices > 1) return;
                        if (packing.ordered) form.taken = std::max(form.taken, columns);
                        if (!reproducible) form.expanded = std::max(form.expanded, rows * columns);
                    });
    if (form.element == DType::f32) return form;
    for_each_scaled(model, quantize,
                    [&](const Layer &layer, int64_t, int64_t columns, int64_t matrices) {
                        form.experts_in_e4m3 = form.experts_in_e4m3 || matrices > 1;
                        // A scale a row, or with blocks one for so many columns.
                        constexpr int64_t block = 128;
                        const bool blocks = quantize == Quantize::stored || matrices > 1;
                        const int64_t scales = blocks ? (columns + block - 1) / block : 1;
                        const FeedForward *feed = layer.feed_forward();
                        if (columns == model.hidden)
                            form.normed_scales = std::max(form.normed_scales, scales);
                        if (columns == last_columns(layer.mixer))
                            form.attended_scales = std::max(form.attended_scales, scales);
                        if (feed != nullptr && columns == feed->width)
                            form.activated_scales = std::max(form.activated_scales, scales);
                    });
    return form;
}

int64_t step_tokens_on(const DeviceCosts &costs, const Model &model, const StepForm &form) {
    const bool sparse = has_sparse_steps(model);
    const int64_t described = costs.tokens_of_step(sparse);
    if (sparse || !costs.gpu) return described;
    return std::min(described, default_step_tokens(model, form, costs.memory_bytes));
}

int64_t bytes_beside_pages(const DeviceCosts &costs, const Model &model, const StepForm &form,
                           int64_t step_tokens, bool widens, Quantize quantize) {
    const int64_t weights = weight_bytes(costs, model, form.element, quantize).all;
    if (!costs.gpu) return weights + cpu_bytes;
    int64_t widened = 0; // as on compute capability 9.0, the only one with such kernels
    for (const AttentionShape &shape : attention_shapes(model).all) {
        if (widens && shape.head_dim <= 256 && !shape.latent())
            widened = std::max(widened, widened_bytes(shape));
    }
    const StepBuffers buffers = step_buffers(model, form, step_tokens);
    const int64_t text =
        weights + buffers.total() + widened + driver_bytes + rank_bytes(buffers, model.ranks, true);
    return text + tower_bytes_on_gpu(model, form.element, form.residual, step_tokens,
                                     costs.memory_bytes, costs.memory_bytes - text);
}

} // namespace batchllm
