// Norms that pass on e4m3 (norm.cuh), to other ranks too.
#include "elementwise/norm.cuh"

namespace batchllm::cuda {

cudaError_t launch_rms_norm_e4m3(const NormArguments &a, cudaStream_t stream) {
    if (a.scales.data == nullptr) return cudaErrorInvalidValue;
    return launch_rms_norm_to<__nv_fp8_e4m3>(a, stream);
}

cudaError_t launch_add_norm_e4m3(const AddNormArguments &a, cudaStream_t stream) {
    if (a.scales.data == nullptr) return cudaErrorInvalidValue;
    return launch_add_norm_to<__nv_fp8_e4m3>(a, stream);
}

} // namespace batchllm::cuda
