// Launches with more shared memory than a kernel gets unasked.
#pragma once

#include <cuda_runtime.h>

namespace batchllm::cuda {

// shared: bytes a block.
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

// The same in clusters of so many blocks. A kernel that waits for all of them launches no more than run at once.
struct ClusterLaunch {
    cudaLaunchAttribute attributes[2]{};
    cudaLaunchConfig_t config{};

    ClusterLaunch(unsigned clusters, unsigned each, int threads, int shared, cudaStream_t stream) {
        attributes[0].id = cudaLaunchAttributeClusterDimension;
        attributes[0].val.clusterDim = {each, 1, 1};
        attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[1].val.programmaticStreamSerializationAllowed = 1;
        config.gridDim = dim3(clusters * each);
        config.blockDim = dim3(static_cast<unsigned>(threads));
        config.dynamicSmemBytes = static_cast<size_t>(shared);
        config.stream = stream;
        config.attrs = attributes;
        config.numAttrs = 2;
    }
    ClusterLaunch(const ClusterLaunch &) = delete;
    ClusterLaunch &operator=(const ClusterLaunch &) = delete;
};
template <typename Kernel>
cudaError_t clusters_at_once(Kernel kernel, const ClusterLaunch &launch, int *count) {
    const cudaError_t status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(launch.config.dynamicSmemBytes));
    if (status != cudaSuccess) return status;
    return cudaOccupancyMaxActiveClusters(count, kernel, &launch.config);
}
template <typename Kernel, typename... Arguments> cudaError_t
launch_clusters(Kernel kernel, const ClusterLaunch &launch, const Arguments &...arguments) {
    const cudaError_t status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(launch.config.dynamicSmemBytes));
    if (status != cudaSuccess) return status;
    return cudaLaunchKernelEx(&launch.config, kernel, arguments...);
}

} // namespace batchllm::cuda
