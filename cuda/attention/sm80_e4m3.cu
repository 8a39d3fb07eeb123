// Fused attention for every device from sm_80 on: the kernels for keys and values in e4m3, without
// a cap or sinks.
#include "attention/sm80_kernel.cuh"

namespace batchllm::cuda::sm80 {

template cudaError_t launch<false, true>(const AttentionArguments &, int, bool, cudaStream_t);

} // namespace batchllm::cuda::sm80
