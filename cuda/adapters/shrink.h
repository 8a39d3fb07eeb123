// How launch_adapter_shrink() makes t of x in 16 bits.
#pragma once

#include "adapters/adapters.h"

namespace batchllm::cuda {

cudaError_t launch_shrink_staged(const AdapterArguments &arguments, int sms, cudaStream_t stream);

} // namespace batchllm::cuda
