// A launch with more shared memory than the default limit.
#pragma once

#include <cuda_runtime.h>

namespace batchllm::cuda {

// shared: bytes per block.
template <typename Kernel, typename... Arguments>
cudaError_t launch_with_shared(Kernel kernel, dim3 blocks, int threads, int shared,
                               cudaStream_t stream, const Arguments &...arguments) {
    const cudaError_t status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    if (status != cudaSuccess) return status;
    kernel<<<blocks, static_cast<unsigned>(threads), static_cast<size_t>(shared), stream>>>(
        arguments...);
    return cudaGetLastError();
}

} // namespace batchllm::cuda
