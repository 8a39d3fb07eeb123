#include "four_bits/sm90.cuh"

namespace batchllm::cuda {

cudaError_t launch_int4_128_sm90(const FourBitArguments &a, int sms, cudaStream_t stream) {
    constexpr PackedForm form = PackedForm::int4_128;
    if (a.element == DType::f16) {
        return a.split ? cudaErrorInvalidValue
                       : launch_product<__half, form, false>(a, sms, stream);
    }
    return a.split ? launch_product<__nv_bfloat16, form, true>(a, sms, stream)
                   : launch_product<__nv_bfloat16, form, false>(a, sms, stream);
}

} // namespace batchllm::cuda
