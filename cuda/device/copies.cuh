// Copies that are not in attention/mma.cuh and attention/hopper.cuh, one wrapper each. PTX ISA 8.x
// names.
#pragma once

#include <cstdint>

namespace batchllm::cuda {

// Eight bytes, global to shared.
__device__ __forceinline__ void copy_async_pair(uint32_t destination, const float2 *source) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(destination), "l"(source)
                 : "memory");
}
// Arrives at the barrier once this thread's copies so far have completed; init must have counted
// the arrival. sm_90.
__device__ __forceinline__ void copy_async_arrive(uint32_t barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
// Stores 8 x 8 matrices of 2-byte elements in mma's accumulator layout, with their columns as rows;
// lane l has the address of column l % 8 of matrix l / 8. sm_90.
__device__ __forceinline__ void store_matrix_transposed(uint32_t address, const uint32_t (&r)[4]) {
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address),
        "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
        : "memory");
}
__device__ __forceinline__ void store_matrix_transposed(uint32_t address, const uint32_t (&r)[2]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1,%2};" ::"r"(address),
                 "r"(r[0]), "r"(r[1])
                 : "memory");
}

} // namespace batchllm::cuda
