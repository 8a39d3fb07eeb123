#include "step/adapted_product.h"

namespace batchllm::cuda {
Status run_adapted(const StepParts &parts, Products *products, const StepProduct &p,
                   ProductPlace place, int64_t rows, bool wanted, cudaStream_t stream,
                   const Input *unordered) {
    if (!parts.adapters.changes(place.number())) return products->run(p, rows, stream);
    const StepAdapters::Addition addition{place.number(), unordered != nullptr ? *unordered : p.x,
                                          p.w.scaling,    rows,
                                          wanted,         p.y,
                                          p.y_type,       p.alpha};
    ASSIGN_OR_RETURN(const AdapterArguments adapters,
                     parts.adapters.shrink(addition, parts.input, stream));
    RETURN_IF_ERROR(products->run(p, rows, stream));
    return parts.adapters.expand(adapters, stream);
}

} // namespace batchllm::cuda
