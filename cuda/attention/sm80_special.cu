// Fused attention for every device from sm_80 on: the kernels of launches with a cap or sinks, in a
// separate file because they take long to compile.
#include "attention/sm80_kernel.cuh"

namespace batchllm::cuda::sm80 {

template cudaError_t launch<true, false>(const AttentionArguments &, int, bool, cudaStream_t);

} // namespace batchllm::cuda::sm80
