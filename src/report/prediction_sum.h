// Sums the predictions for parts of a job that run one after another.
#pragma once

#include "batchllm.h"

namespace batchllm {

// The name of the first field that is negative or not finite; null if there is none.
const char *wrong_figure(const batchllm_prediction &of);

// Adds a part to the sum, which keeps its device and pool. A sum without rows becomes the part.
// Counts saturate at the maximum of 64 bits.
void add_up(const batchllm_prediction &of, batchllm_prediction *sum);

} // namespace batchllm
