#include "step/output_head.h"

namespace batchllm::cuda {

Status OutputHead::compute_logits(int64_t first, int64_t count, cudaStream_t stream) {
    const Model &model = parts_.model;
    const int64_t row_bytes = model.hidden * dtype_bytes(parts_.element());
    const StepAdapters &adapters = parts_.adapters;
    const bool adapted = adapters.changes(adapters.model().head());
    AdapterArguments change;
    if (adapted) {
        const StepRows rows = parts_.wanted_rows();
        ASSIGN_OR_RETURN(change,
                         adapters.shrink({adapters.model().head(), hidden(), Scaling::none,
                                          rows.count, rows.wanted != nullptr, logits(), DType::f32,
                                          model.logits_scale, nullptr, nullptr,
                                          static_cast<int32_t>(first), static_cast<int32_t>(count)},
                                         parts_.input, stream));
    }
    RETURN_IF_ERROR(products_.run({parts_.weights.head, hidden() + first * row_bytes, logits(),
                                   DType::f32, false, model.logits_scale},
                                  count, stream));
    if (adapted) RETURN_IF_ERROR(adapters.expand(change, stream));
    RETURN_IF_CUDA(launch_finish_logits(logits(), count, logits_stride(), parts_.weights.head_bias,
                                        model.logits_softcap, stream));
    return parts_.profile.mark(Part::logits, stream);
}

Status OutputHead::sum_hidden(const SumSpan *spans, int32_t count, float *sums,
                              cudaStream_t stream) {
    RETURN_IF_CUDA(launch_sum_rows(parts_.element(), hidden(), spans, sums, count,
                                   parts_.model.hidden, stream));
    return parts_.profile.mark(Part::sample, stream);
}

} // namespace batchllm::cuda
