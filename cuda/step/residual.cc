#include "step/residual.h"

#include <algorithm>

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

RowScales ResidualStream::scales_of(float *data, Scaling scaling, int64_t rows) const {
    if (scaling == Scaling::turns) return {data, 1, scale_groups(parts_.model.hidden)};
    return {data, scaling == Scaling::blocks ? padded_rows(rows) : 0};
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
    const RowScales scales = scales_of(a.normed_scales.as<float>(), scaling, rows.count);
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
    if (!sums) {
        RETURN_IF_ERROR(
            run(e, {e.w, e.x, parts_.activations.delta.data(), type, false}, rows, stream));
        RETURN_IF_ERROR(parts_.profile.mark(e.part, stream));
        const AddNormArguments end = addition(e, rows);
        if (e.expert_inputs) {
            const DeviceExperts &experts = parts_.layer(layer_).experts;
            const auto room = [&](bool of_router) {
                return const_cast<void *>(expert_input(of_router, rows).data);
            };
            RETURN_IF_CUDA(launch_add_norms(
                {end, {experts.router_norm, experts.before}, {room(true), room(false)}}, stream));
        } else {
            RETURN_IF_CUDA(launch_add_norm(end, stream));
        }
        return parts_.profile.mark(Part::norm, stream);
    }
    const DType input = e.w.scaling == Scaling::none ? parts_.options.element : DType::e4m3;
    for (const Room &room : part_rooms(rows)) {
        Input x = e.x;
        x.data =
            static_cast<const std::byte *>(x.data) + room.begin * e.w.columns * dtype_bytes(input);
        if (x.scales != nullptr)
            x.scales += room.begin; // all rows are in one room, or a row has one
        StepRows some = rows;
        some.count = room.count;
        RETURN_IF_ERROR(run(e, {e.w, x, room.data, type, false}, some, stream));
    }
    RETURN_IF_ERROR(parts_.profile.mark(e.part, stream));
    return add_up(e.bias, rows, addition(e, rows), stream);
}

bool ResidualStream::makes_expert_inputs(size_t index) const {
    const DeviceLayer &w = parts_.layer(index);
    return w.mixes() && w.after_attention && w.experts.before && !parts_.options.rank &&
           scaling_of_feed(w) == Scaling::none && w.before_feed_forward.is_plain_rms() &&
           w.experts.router_norm.is_plain_rms() && w.experts.before.is_plain_rms();
}

// Behind the mixer its first product's results are no longer read.
Input ResidualStream::expert_input(bool of_router, const StepRows &rows) const {
    const int64_t skipped = of_router ? 0 : rows.count * parts_.model.hidden;
    return Input(parts_.activations.qkv.data() + skipped * dtype_bytes(parts_.options.element));
}

Status ResidualStream::sum(void *made, const StepRows &rows, cudaStream_t stream) {
    const int64_t count = rows.count * parts_.model.hidden;
    RETURN_IF_ERROR(parts_.options.rank.sum(made, count, parts_.options.residual, stream));
    return parts_.profile.mark(Part::exchange, stream);
}

bool ResidualStream::sums_by_peers(const StepRows &rows) const {
    return by_owners(rows) || parts_.options.rank.group->sums_by_peers(rows.count * row_bytes());
}

ResidualStream::Owned ResidualStream::owned(int64_t rows, int32_t rank) const {
    const int64_t ranks = parts_.peers->signals.ranks;
    const int64_t step = owned_row_step * ranks, each = (rows + step - 1) / step * owned_row_step;
    const int64_t begin = std::min(rows, rank * each);
    return {begin, std::min(rows - begin, each)};
}

std::byte *ResidualStream::slot(int64_t rows, int32_t rank, int32_t by) const {
    const void *of_rank = parts_.peers->sums[parts_.peers->turn].parts[static_cast<size_t>(rank)];
    return static_cast<std::byte *>(const_cast<void *>(of_rank)) +
           by * owned(rows, rank).count * row_bytes();
}

std::vector<ResidualStream::Room> ResidualStream::part_rooms(const StepRows &rows) const {
    if (!by_owners(rows)) {
        return {{0, rows.count,
                 sums_by_peers(rows) ? parts_.peers->own[parts_.peers->turn]
                                     : parts_.activations.delta.data()}};
    }
    std::vector<Room> rooms;
    for (int32_t r = 0; r < parts_.peers->signals.ranks; ++r) {
        const Owned of = owned(rows.count, r);
        if (of.count == 0) continue;
        rooms.push_back({of.begin, of.count, slot(rows.count, r, parts_.peers->signals.own)});
    }
    return rooms;
}

void ResidualStream::add_owned_rows(int64_t tokens, std::vector<int64_t> *rows) const {
    if (!can_own(tokens)) return;
    for (int32_t r = 0; r < parts_.peers->signals.ranks; ++r) {
        rows->push_back(owned(tokens, r).count);
    }
}

// Of the rows that this rank owns alone, and to all ranks.
void ResidualStream::make_own(const StepRows &rows, AddNormArguments *addition) const {
    AddNormArguments &a = *addition;
    const PeerBuffers &peers = *parts_.peers;
    const int32_t rank = peers.signals.own;
    const Owned own = owned(rows.count, rank);
    const auto skip = [&](void *data, DType type) -> void * {
        return data == nullptr
                   ? nullptr
                   : static_cast<std::byte *>(data) + own.begin * a.hidden * dtype_bytes(type);
    };
    a.count = static_cast<int32_t>(own.count);
    a.residual = skip(a.residual, a.stream_type);
    a.out = skip(a.out, a.element);
    a.whole.data = skip(a.whole.data, a.whole.type);
    if (a.scales.data != nullptr) a.scales.data += own.begin * a.scales.row_stride;
    for (int32_t r = 0; r < peers.signals.ranks; ++r) {
        a.peers.parts[static_cast<size_t>(r)] = slot(rows.count, rank, r);
    }
    a.copies = peers.copies;
    // Of the wanted rows each rank takes the residual stream in the last layer.
    a.copies.residual = parts_.staged.gather && layer_ + 2 >= parts_.weights.layers.size();
}

Status ResidualStream::add_up(const float *bias, const StepRows &rows, AddNormArguments addition,
                              cudaStream_t stream) {
    const bool owners = by_owners(rows), by_peers = sums_by_peers(rows);
    addition.bias = nullptr;
    if (!owners) {
        void *made = part_rooms(rows).front().data;
        RETURN_IF_CUDA(launch_add_bias(parts_.options.residual, made, bias,
                                       static_cast<int32_t>(rows.count), parts_.model.hidden,
                                       stream));
        addition.delta = made;
        if (!by_peers) RETURN_IF_ERROR(sum(made, rows, stream));
    }
    if (by_peers) {
        RETURN_IF_CUDA(launch_signal(parts_.peers->signals, stream));
        addition.peers = parts_.peers->sums[parts_.peers->turn];
        if (owners) make_own(rows, &addition);
        parts_.peers->turn ^= 1;
    }
    if (addition.count > 0) RETURN_IF_CUDA(launch_add_norm(addition, stream));
    if (owners && (addition.out != nullptr || addition.copies.residual)) {
        RETURN_IF_CUDA(launch_meeting(parts_.peers->signals, stream));
    }
    return parts_.profile.mark(by_peers ? Part::exchange : Part::norm, stream);
}

// Steps of few rows wait for signals longer than for bytes. What adapters add to a product is added to all of its rows.
// Nor are rows owned on merged layers: one rank may have them where another has no memory for its own, and all ranks own rows
// or none does. What a tower adds behind a layer is added to all rows.
Status ResidualStream::begin(cudaStream_t stream) {
    owners_ = can_own(parts_.staged.tokens) && parts_.adapters.form() == 0 &&
              !parts_.pictures.adds_behind(0);
    if (parts_.peers == nullptr) return {};
    parts_.peers->turn = 0;
    return check_cuda(launch_meeting(parts_.peers->signals, stream), "waiting for ranks");
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
            scales_of(a.normed_scales.as<float>(), e.next_scaling, rows.count),
            whole_of(e.next_scaling)};
}

} // namespace batchllm::cuda
