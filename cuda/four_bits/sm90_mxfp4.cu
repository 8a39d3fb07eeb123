#include "four_bits/sm90.cuh"

namespace batchllm::cuda {

cudaError_t launch_mxfp4_sm90(const FourBitArguments &a, int sms, cudaStream_t stream) {
    return launch_product<__nv_bfloat16, PackedForm::mxfp4, false>(a, sms, stream);
}

} // namespace batchllm::cuda
