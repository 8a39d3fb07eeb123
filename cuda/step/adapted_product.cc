#include "step/adapted_product.h"

#include "gated/gated.h"

namespace batchllm::cuda {
namespace {

// With fewer tokens, two small launches beside cuBLASLt's product are as fast.
constexpr int64_t least_summed_tokens = 1024;

} // namespace

Status run_adapted(const StepParts &parts, Products *products, const StepProduct &p,
                   ProductPlace place, int64_t rows, bool wanted, cudaStream_t stream,
                   const Input *unordered) {
    if (!parts.adapters.changes(place)) return products->run(p, rows, stream);
    const StepAdapters::Addition addition{
        place,  unordered != nullptr ? *unordered : p.x, p.w.scaling, rows, wanted, p.y, p.y_type,
        p.alpha};
    ASSIGN_OR_RETURN(const AdapterArguments adapters,
                     parts.adapters.shrink(addition, parts.input, stream));
    const SummedArguments summed{parts.element(),
                                 p.x.data,
                                 p.w.data,
                                 p.y,
                                 static_cast<int32_t>(rows),
                                 static_cast<int32_t>(p.w.columns),
                                 static_cast<int32_t>(p.w.rows),
                                 p.accumulate,
                                 p.alpha,
                                 &adapters};
    if (rows >= least_summed_tokens && parts.options.has_gated_products() && !p.w.packing &&
        p.w.scaling == Scaling::none && p.y_type == parts.element() && takes_summed(summed)) {
        return check_cuda(launch_summed_sm90(summed, parts.options.attention.sms, stream),
                          "a product with adapters");
    }
    RETURN_IF_ERROR(products->run(p, rows, stream));
    return parts.adapters.expand(adapters, stream);
}

} // namespace batchllm::cuda
