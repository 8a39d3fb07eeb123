// A launch that begins while the one before it ends (programmatic dependent launch), on devices of compute capability 9.0
// and later.
//
// The launch is early if the device can; that its kernel waits was decided when it was compiled. Code that was compiled for
// less than 9.0 does not wait, and a device of 9.0 may run it: a launch that overtakes what it reads, in silence. So a file
// that includes this has to be compiled for compute_90 itself (cuda/meson.build: cuda_args_8_and_9), which is checked here.
#pragma once

#include <initializer_list>

#include <cuda_runtime.h>

namespace batchllm::cuda {

// Most files' code for 9.0 is made from compute_80.
#ifndef __CUDA_ARCH_LIST__
#error "launches that begin early: compile with nvcc"
#else
constexpr bool compiled_for_9_0() {
    for (const int target : {__CUDA_ARCH_LIST__}) {
        if (target == 900) return true;
    }
    return false;
}
static_assert(compiled_for_9_0(), "launches that begin early need code from compute_90");
#endif

// Of a launch that begins early: what earlier launches have written is there, and what they read may be overwritten.
__device__ __forceinline__ void wait_for_launches() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// early: the kernel may begin once the CTAs of the launch before it have ended (none of our kernels lets the next one begin
// sooner, by griddepcontrol.launch_dependents): what overlaps is the flush of what they wrote, and the time that a launch takes.
// Before wait_for_launches() it must read nothing that the launch before it, or one before that, writes.
// config: with one attribute at most.
template <typename... Of, typename... Arguments>
cudaError_t launch_config(void (*kernel)(Of...), cudaLaunchConfig_t config, bool early,
                          const Arguments &...arguments) {
    if (config.numAttrs > 1) return cudaErrorInvalidValue;
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
    unsigned count = config.numAttrs;
    if (count > 0) attributes[0] = config.attrs[0];
    if (early && major >= 9) {
        attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[count++].val.programmaticStreamSerializationAllowed = 1;
    }
    config.attrs = attributes;
    config.numAttrs = count;
    return cudaLaunchKernelEx(&config, kernel, arguments...);
}

} // namespace batchllm::cuda
