// Fused attention for Hopper: the kernels of launches without a cap and sinks, and the launcher.
#include "attention/sm90_kernel.cuh"

namespace batchllm::cuda {

cudaError_t launch_attention_sm90(const AttentionArguments &a, int sms, cudaStream_t stream) {
    if (a.matrix_items + a.stream_items == 0) return cudaSuccess;
    return special(a) ? sm90::launch<true>(a, sms, stream) : sm90::launch<false>(a, sms, stream);
}

} // namespace batchllm::cuda
