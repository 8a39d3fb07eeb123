// A launch that begins while the one before it ends (programmatic dependent launch).
#pragma once

#include <cuda_runtime.h>

namespace batchllm::cuda {

// Of a launch that begins early: what earlier launches have written is there, and what they read may be overwritten.
__device__ __forceinline__ void wait_for_launches() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// early: the kernel may begin once the launch before it has no more CTAs to begin; before wait_for_launches() it must read
// nothing that this launch or the one before that writes. Only where devices can, from compute capability 9.0 on.
template <typename... Of, typename... Arguments>
cudaError_t launch_config(void (*kernel)(Of...), cudaLaunchConfig_t config, bool early,
                          const Arguments &...arguments) {
    int device = 0, major = 0;
    cudaError_t status = cudaGetDevice(&device);
    if (status == cudaSuccess) {
        status = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    }
    if (status == cudaSuccess && config.dynamicSmemBytes > 0) {
        status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(config.dynamicSmemBytes));
    }
    if (status != cudaSuccess) return status;
    cudaLaunchAttribute attributes[2] = {};
    unsigned count = 0;
    for (; count < config.numAttrs && count < 1; ++count) attributes[count] = config.attrs[count];
    if (early && major >= 9) {
        attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[count++].val.programmaticStreamSerializationAllowed = 1;
    }
    config.attrs = attributes;
    config.numAttrs = count;
    return cudaLaunchKernelEx(&config, kernel, arguments...);
}

} // namespace batchllm::cuda
