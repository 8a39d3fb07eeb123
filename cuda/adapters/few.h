// The products of rows whose adapters have few rows each: A and B are read for so little arithmetic that memory alone bounds
// them. Sums have one order, whatever the step is, but another one than in other tiles.
#pragma once

#include "adapters/adapters.h"

namespace batchllm::cuda {

// Of the first AdapterWork::few_count tiles; A and B have 16 bits.
cudaError_t launch_shrink_few(const AdapterArguments &arguments, int sms, cudaStream_t stream);
cudaError_t launch_expand_few(const AdapterArguments &arguments, int sms, cudaStream_t stream);

} // namespace batchllm::cuda
