#include "four_bits/sm90.cuh"

namespace batchllm::cuda {

cudaError_t launch_nvfp4_sm90(const FourBitArguments &a, int sms, cudaStream_t stream) {
    return launch_product<__nv_bfloat16, PackedForm::nvfp4, false>(a, sms, stream);
}

} // namespace batchllm::cuda
