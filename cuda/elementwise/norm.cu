// Bound by memory: a norm reads a row and writes it, an addition reads one more and writes one more.
// 16-byte accesses (32 for f32); a thread keeps its part of the row in registers. An addition whose rows a rank owns is
// bound by the link, over which it writes what it passes on to other ranks.
#include "elementwise/norm.cuh"

namespace batchllm::cuda {

cudaError_t launch_rms_norm(const NormArguments &a, cudaStream_t stream) {
    if (a.count == 0) return cudaSuccess;
    if (a.element == DType::e4m3) return launch_rms_norm_e4m3(a, stream);
    return with_type(a.element, [&](auto t) { return launch_rms_norm_to<decltype(t)>(a, stream); });
}

cudaError_t launch_add_norm(const AddNormArguments &a, cudaStream_t stream) {
    if (a.count == 0 || (a.delta == nullptr && a.out == nullptr)) return cudaSuccess;
    if (a.element == DType::e4m3) return launch_add_norm_e4m3(a, stream);
    return with_type(a.element, [&](auto t) { return launch_add_norm_to<decltype(t)>(a, stream); });
}

} // namespace batchllm::cuda
