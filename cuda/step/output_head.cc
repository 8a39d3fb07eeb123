#include "step/output_head.h"

#include <vector>

namespace batchllm::cuda {

Status OutputHead::compute_logits(int64_t first, int64_t count, cudaStream_t stream) {
    const Model &model = parts_.model;
    const int64_t row_bytes = model.hidden * dtype_bytes(parts_.element());
    if (first > 0 && parts_.peers != nullptr) { // all have read those before
        RETURN_IF_CUDA(launch_meeting(parts_.peers->signals, stream));
    }
    const Matrix &head = parts_.weights.head;
    auto *made = parts_.activations.logits.as<float>();
    const StepAdapters &adapters = parts_.adapters;
    const bool adapted = adapters.changes(adapters.model().head());
    AdapterArguments change;
    if (adapted) {
        const StepRows rows = parts_.wanted_rows();
        ASSIGN_OR_RETURN(
            change,
            adapters.shrink({adapters.model().head(), hidden(), Scaling::none, rows.count,
                             rows.wanted != nullptr, made, DType::f32, model.logits_scale, nullptr,
                             nullptr, static_cast<int32_t>(first), static_cast<int32_t>(count)},
                            parts_.input, stream));
    }
    RETURN_IF_ERROR(products_.run(
        {head, hidden() + first * row_bytes, made, DType::f32, false, model.logits_scale}, count,
        stream));
    if (adapted) RETURN_IF_ERROR(adapters.expand(change, stream));
    RETURN_IF_CUDA(launch_finish_logits(made, count, head.rows, parts_.weights.head_bias,
                                        model.logits_softcap, stream));
    RETURN_IF_ERROR(parts_.profile.mark(Part::logits, stream));
    if (!rank()) return {};
    RETURN_IF_ERROR(parts_.peers != nullptr ? read_logits(count, stream)
                                            : share_logits(count, stream));
    return parts_.profile.mark(Part::exchange, stream);
}

// From each rank's memory the logits of its tokens for this rank's share of the rows, which become whole rows.
Status OutputHead::read_logits(int64_t count, cudaStream_t stream) {
    PeerBuffers &peers = *parts_.peers;
    const std::vector<HeadPart> &parts = parts_.options.head_parts;
    const Share own = share_of(count);
    PeerColumns all;
    all.ranks = rank().ranks();
    all.rows = static_cast<int32_t>(own.end - own.begin);
    all.to = logits();
    all.stride = logits_stride();
    for (int32_t r = 0; r < all.ranks; ++r) {
        const HeadPart &of = parts[static_cast<size_t>(r)];
        const auto *made = reinterpret_cast<const float *>(peers.of_rank(r, peers.logits));
        all.parts[static_cast<size_t>(r)] = {made + own.begin * of.padded, of.padded,
                                             static_cast<int32_t>(of.begin),
                                             static_cast<int32_t>(of.rows)};
    }
    RETURN_IF_CUDA(launch_meeting(peers.signals, stream));
    peers.turn = 0; // of what is summed after this
    return check_cuda(launch_put_together(all, stream), "logits of all ranks");
}

// The same by NCCL.
Status OutputHead::share_logits(int64_t count, cudaStream_t stream) {
    constexpr auto number = static_cast<int64_t>(sizeof(float));
    const Activations &a = parts_.activations;
    const std::vector<HeadPart> &parts = parts_.options.head_parts;
    const Share own = share_of(count);
    const int64_t rows = own.end - own.begin, row_bytes = logits_stride() * number;
    std::vector<RankGroup::Bytes> to, from;
    std::byte *next = a.others_logits.data();
    for (size_t r = 0; r < parts.size(); ++r) {
        const Share share = share_of(count, static_cast<int32_t>(r));
        const int64_t stride = parts_.weights.head.rows * number;
        std::byte *made = a.logits.data() + share.begin * stride;
        to.push_back({made, (share.end - share.begin) * stride});
        const bool self = static_cast<int32_t>(r) == rank().number;
        from.push_back({self ? made : next, rows * parts[r].padded * number});
        if (!self) next += from.back().count;
    }
    RETURN_IF_ERROR(rank().group->swap(rank().number, to, from, stream));
    for (size_t r = 0; r < parts.size() && rows > 0; ++r) {
        RETURN_IF_CUDA(cudaMemcpy2DAsync(
            a.all_logits.data() + parts[r].begin * number, static_cast<size_t>(row_bytes),
            from[r].data, static_cast<size_t>(parts[r].padded * number),
            static_cast<size_t>(parts[r].rows * number), static_cast<size_t>(rows),
            cudaMemcpyDeviceToDevice, stream));
    }
    return {};
}

Status OutputHead::sum_hidden(const SumSpan *spans, int32_t count, float *sums,
                              cudaStream_t stream) {
    RETURN_IF_CUDA(launch_sum_rows(parts_.element(), hidden(), spans, sums, count,
                                   parts_.model.hidden, stream));
    return parts_.profile.mark(Part::sample, stream);
}

} // namespace batchllm::cuda
