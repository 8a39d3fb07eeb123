#include "four_bits/sm90.cuh"

namespace batchllm::cuda {

cudaError_t launch_int4_e4m3_sm90(const FourBitArguments &a, int sms, cudaStream_t stream) {
    if (a.x_scales == nullptr) return cudaErrorInvalidValue;
    if (a.y_type == DType::f16) {
        return launch_product<__half, PackedForm::int4_e4m3, false>(a, sms, stream);
    }
    return launch_product<__nv_bfloat16, PackedForm::int4_e4m3, false>(a, sms, stream);
}

} // namespace batchllm::cuda
