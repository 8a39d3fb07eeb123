#include "step/residual.h"

#include "elementwise/elementwise.h"
#include "step/adapted_product.h"

namespace batchllm::cuda {

ResidualStream::First ResidualStream::first_of(size_t index) const {
    const DeviceLayer &w = parts_.layer(index);
    if (w.mixes()) return {w.before_attention, w.qkv.scaling};
    return {w.before_feed_forward, scaling_of_feed(w)};
}

ResidualStream::First ResidualStream::after(size_t index) const {
    if (index + 1 < parts_.weights.layers.size()) return first_of(index + 1);
    return {parts_.weights.final_norm, Scaling::none};
}

RowScales ResidualStream::scales_of(const DeviceMemory &memory, Scaling scaling,
                                    int64_t rows) const {
    if (scaling == Scaling::turns)
        return {memory.as<float>(), 1, scale_groups(parts_.model.hidden)};
    return {memory.as<float>(), scaling == Scaling::blocks ? padded_rows(rows) : 0};
}

Input ResidualStream::normed(const DeviceNorm &norm, Scaling scaling, const StepRows &rows) const {
    const Activations &a = parts_.activations;
    return {copies_nothing(norm, scaling) ? rows.residual : a.normed.data(),
            a.normed_scales.as<float>()};
}

Status ResidualStream::norm(const DeviceNorm &norm, Scaling scaling, const StepRows &rows,
                            cudaStream_t stream) {
    if (copies_nothing(norm, scaling)) return {};
    const Activations &a = parts_.activations;
    const auto count = static_cast<int32_t>(rows.count);
    const DType type = parts_.options.input_type(scaling);
    const RowScales scales = scales_of(a.normed_scales, scaling, rows.count);
    if (norm.is_plain_rms()) {
        const NormArguments arguments{type,
                                      parts_.options.residual,
                                      rows.residual,
                                      nullptr,
                                      norm.weight,
                                      norm.epsilon,
                                      a.normed.data(),
                                      count,
                                      parts_.model.hidden,
                                      scales,
                                      whole_of(scaling)};
        RETURN_IF_CUDA(launch_rms_norm(arguments, stream));
    } else {
        const AddNormArguments arguments{type,
                                         parts_.options.residual,
                                         rows.residual,
                                         nullptr,
                                         nullptr,
                                         {},
                                         1,
                                         norm,
                                         a.normed.data(),
                                         count,
                                         parts_.model.hidden,
                                         nullptr,
                                         scales,
                                         whole_of(scaling)};
        RETURN_IF_CUDA(launch_add_norm(arguments, stream));
    }
    return parts_.profile.mark(Part::norm, stream);
}

Status ResidualStream::finish(const Ending &e, const StepRows &rows, cudaStream_t stream) {
    const DType type = parts_.options.residual;
    const bool sums = e.divided && parts_.options.rank;
    if (!sums && !e.after && e.keep == nullptr && products_.adds(e.w)) {
        RETURN_IF_ERROR(run(e, {e.w, e.x, rows.residual, type, true, e.scale}, rows, stream));
        RETURN_IF_CUDA(launch_add_bias(type, rows.residual, e.bias,
                                       static_cast<int32_t>(rows.count), parts_.model.hidden,
                                       stream));
        RETURN_IF_ERROR(parts_.profile.mark(e.part, stream));
        return e.next != nullptr ? norm(*e.next, e.next_scaling, rows, stream) : Status();
    }
    void *delta = sums ? part_room(rows) : parts_.activations.delta.data();
    RETURN_IF_ERROR(run(e, {e.w, e.x, delta, type, false}, rows, stream));
    RETURN_IF_ERROR(parts_.profile.mark(e.part, stream));
    AddNormArguments add = addition(e, rows);
    if (sums) RETURN_IF_ERROR(add_up(e.bias, rows, &add, stream));
    const bool waits = add.peers.ranks > 0;
    RETURN_IF_CUDA(launch_add_norm(add, stream));
    return parts_.profile.mark(waits ? Part::exchange : Part::norm, stream);
}

Status ResidualStream::sum(void *made, const StepRows &rows, cudaStream_t stream) {
    const int64_t count = rows.count * parts_.model.hidden;
    RETURN_IF_ERROR(parts_.options.rank.sum(made, count, parts_.options.residual, stream));
    return parts_.profile.mark(Part::exchange, stream);
}

// More than two would each read more than by NCCL's rings, which are slow for short sums alone.
bool ResidualStream::sums_by_peers(const StepRows &rows) const {
    constexpr int64_t most_bytes = int64_t{1} << 20;
    const int64_t row_bytes = parts_.model.hidden * dtype_bytes(parts_.options.residual);
    return parts_.peers &&
           (parts_.peers.signals.ranks == 2 || rows.count * row_bytes <= most_bytes);
}

void *ResidualStream::part_room(const StepRows &rows) const {
    return sums_by_peers(rows) ? parts_.peers.own[turn_] : parts_.activations.delta.data();
}

Status ResidualStream::add_up(const float *bias, const StepRows &rows, AddNormArguments *addition,
                              cudaStream_t stream) {
    void *made = part_room(rows);
    RETURN_IF_CUDA(launch_add_bias(parts_.options.residual, made, bias,
                                   static_cast<int32_t>(rows.count), parts_.model.hidden, stream));
    addition->delta = made;
    addition->bias = nullptr;
    if (!sums_by_peers(rows)) return sum(made, rows, stream);
    RETURN_IF_CUDA(launch_signal(parts_.peers.signals, stream));
    addition->peers = parts_.peers.sums[turn_];
    turn_ ^= 1;
    return {};
}

Status ResidualStream::begin(cudaStream_t stream) {
    if (!parts_.peers) return {};
    turn_ = 0;
    RETURN_IF_CUDA(launch_signal(parts_.peers.signals, stream));
    return check_cuda(launch_wait(parts_.peers.signals, stream), "waiting for ranks");
}

Status ResidualStream::run(const Ending &e, const StepProduct &product, const StepRows &rows,
                           cudaStream_t stream) {
    if (!e.place) return products_.run(product, rows.count, stream);
    return run_adapted(parts_, &products_, product, *e.place, rows.count, rows.wanted != nullptr,
                       stream);
}

AddNormArguments ResidualStream::addition(const Ending &e, const StepRows &rows) const {
    const Activations &a = parts_.activations;
    const bool writes = e.next != nullptr && !copies_nothing(*e.next, e.next_scaling);
    return {parts_.options.input_type(e.next_scaling),
            parts_.options.residual,
            rows.residual,
            a.delta.data(),
            e.bias,
            e.after,
            e.scale,
            writes ? *e.next : DeviceNorm{},
            writes ? a.normed.data() : nullptr,
            static_cast<int32_t>(rows.count),
            parts_.model.hidden,
            e.keep,
            scales_of(a.normed_scales, e.next_scaling, rows.count),
            whole_of(e.next_scaling)};
}

} // namespace batchllm::cuda
