// Fused attention for Hopper: the kernels of launches with a cap or sinks, in a separate file
// because they take long to compile.
#include "attention/sm90_kernel.cuh"

namespace batchllm::cuda::sm90 {

template cudaError_t launch<true, false>(const AttentionArguments &, int, cudaStream_t);

} // namespace batchllm::cuda::sm90
