// The products of a model's layers, from buffer to buffer: what is prepared before the first step, and run alone to measure
// its rate.
#pragma once

#include <vector>

#include "step/parts.h"
#include "step/products.h"
#include "step/residual.h"

namespace batchllm::cuda {

// In the order of a step: QKV, latents' queries, the gates and decays of a delta net that decays by channel, O; gate and up,
// down, the router, and the input block's two; those that the layer has, as all but the last layer run them. Neither those of
// latents' heads nor experts'.
std::vector<StepProduct> layer_products(const StepParts &parts, Products *products, size_t layer);

// step_form() with what is in e4m3.
StepForm loaded_form(const StepParts &parts, Products *products);

// Chooses the algorithms of all numbers of rows, which is otherwise done as they come.
Status prepare_products(const StepParts &parts, Products *products, cudaStream_t stream);
// Those of reproducible steps, before the first.
Status prepare_in_order(const StepParts &parts, Products *products);

// The layers' products and the head's alone, on whatever the buffers hold, and experts with their routing. Each but experts' is
// cuBLASLt's, whatever launch a step makes it in. wanted: rows of the last layer, from its O on, and of the head.
Status run_products(StepParts *parts, Products *products, const ResidualStream &residual,
                    int64_t tokens, int64_t wanted, cudaStream_t stream);

} // namespace batchllm::cuda
