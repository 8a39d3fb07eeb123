// Rotations whose keys and values are stored in e4m3: apart, for code for 8.0 converts in a hundred instructions.
#include "elementwise/rope.cuh"

namespace batchllm::cuda {

cudaError_t launch_rope_e4m3(const RopeArguments &a, cudaStream_t stream) {
    switch (a.element) {
    case DType::bf16:
        return launch_stored<__nv_bfloat16, __nv_fp8_e4m3>(a, stream);
    case DType::f16:
        return launch_stored<__half, __nv_fp8_e4m3>(a, stream);
    default:
        return cudaErrorInvalidValue;
    }
}

} // namespace batchllm::cuda
