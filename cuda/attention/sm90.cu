// Fused attention for Hopper: the kernels of launches without a cap or sinks, and the launcher.
#include "attention/sm90_kernel.cuh"

namespace batchllm::cuda {

cudaError_t launch_attention_sm90(const AttentionArguments &a, int sms, cudaStream_t stream) {
    if (a.matrix_items + a.stream_items == 0) return cudaSuccess;
    if (a.kv_e4m3) {
        return special(a) ? sm90::launch<true, true>(a, sms, stream)
                          : sm90::launch<false, true>(a, sms, stream);
    }
    return special(a) ? sm90::launch<true, false>(a, sms, stream)
                      : sm90::launch<false, false>(a, sms, stream);
}

} // namespace batchllm::cuda
