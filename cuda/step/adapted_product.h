// A layer's product, and beside it what adapters add to it.
#pragma once

#include "step/parts.h"
#include "step/products.h"

namespace batchllm::cuda {

// rows: of x and y. wanted: they are the wanted ones of a step that gathers. Packed matrices in which gate and up take turns
// are not for this. unordered: x as the adapters want it, where product.x has its columns in W's order; null: product.x.
Status run_adapted(const StepParts &parts, Products *products, const StepProduct &product,
                   ProductPlace place, int64_t rows, bool wanted, cudaStream_t stream,
                   const Input *unordered = nullptr);

} // namespace batchllm::cuda
