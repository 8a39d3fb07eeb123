// Fused attention for every device from sm_80 on: the kernels of launches without a cap or sinks,
// and the launchers.
#include "attention/sm80_kernel.cuh"

namespace batchllm::cuda {
namespace {

cudaError_t launch(const AttentionArguments &a, int sms, bool few_slots, cudaStream_t stream) {
    if (a.matrix_items + a.stream_items == 0) return cudaSuccess;
    if (a.kv_e4m3) {
        return special(a) ? sm80::launch<true, true>(a, sms, few_slots, stream)
                          : sm80::launch<false, true>(a, sms, few_slots, stream);
    }
    return special(a) ? sm80::launch<true, false>(a, sms, few_slots, stream)
                      : sm80::launch<false, false>(a, sms, few_slots, stream);
}

} // namespace

cudaError_t launch_attention_sm80(const AttentionArguments &a, int sms, cudaStream_t stream) {
    return launch(a, sms, false, stream);
}

cudaError_t launch_attention_sm80_small(const AttentionArguments &a, int sms, cudaStream_t stream) {
    return launch(a, sms, true, stream);
}

} // namespace batchllm::cuda
