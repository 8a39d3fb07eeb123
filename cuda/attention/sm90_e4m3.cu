// Fused attention for Hopper: the kernels for keys and values in e4m3, without a cap or sinks.
#include "attention/sm90_kernel.cuh"

namespace batchllm::cuda::sm90 {

template cudaError_t launch<false, true>(const AttentionArguments &, int, cudaStream_t);

} // namespace batchllm::cuda::sm90
