// How launch_adapter_shrink() makes t of A in 16 bits, where tiles are not of few rows.
#pragma once

#include "adapters/adapters.h"

namespace batchllm::cuda {

cudaError_t launch_shrink_staged(const AdapterArguments &arguments, int sms, cudaStream_t stream);

} // namespace batchllm::cuda
