// Predictions of parts of a job that run one after another -> one of the whole job.
#pragma once

#include "batchllm.h"

namespace batchllm {

// The name of the first figure that is below 0 or not finite; null if there is none.
const char *wrong_figure(const batchllm_prediction &of);

// Adds a part to the sum of those before it, whose device and pool stay. A sum without rows becomes the part.
// A count that exceeds 64 bits stays at their maximum.
void add_up(const batchllm_prediction &of, batchllm_prediction *sum);

} // namespace batchllm
