// Predictions of parts of a job that run one after another -> one of the whole job.
#pragma once

#include "batchllm.h"

namespace batchllm {

// The first figure that is below 0, or not finite: its name. Null: none is.
const char *wrong_figure(const batchllm_prediction &of);

// Adds a part to the sum of those before it, whose device and pool stay. A sum without rows becomes the part.
// A count that outgrows 64 bits stays at the most.
void add_up(const batchllm_prediction &of, batchllm_prediction *sum);

} // namespace batchllm
