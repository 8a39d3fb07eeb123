// The instructions of sm_80 and later that the kernels use, one wrapper each: cp.async, ldmatrix
// and mma.sync. PTX ISA 8.x names.
#pragma once

#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace batchllm::cuda {

__device__ __forceinline__ uint32_t shared_address(const void *pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// ---- cp.async -----------------------------------------------------------------------------------

// 16 bytes, global to shared, bypassing L1. Writes zeros, without reading the source, if not
// `valid`.
__device__ __forceinline__ void copy_async(uint32_t destination, const void *source, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(source),
                 "r"(valid ? 16 : 0)
                 : "memory");
}
__device__ __forceinline__ void copy_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most `Pending` of this thread's groups are in flight.
template <int Pending> __device__ __forceinline__ void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

__device__ __forceinline__ uint4 load_shared(uint32_t address) {
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}
__device__ __forceinline__ uint2 load_shared_pair(uint32_t address) {
    uint2 v;
    asm volatile("ld.shared.v2.b32 {%0,%1}, [%2];"
                 : "=r"(v.x), "=r"(v.y)
                 : "r"(address)
                 : "memory");
    return v;
}
__device__ __forceinline__ void store_shared(uint32_t address, const uint4 &v) {
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(v.x), "r"(v.y),
                 "r"(v.z), "r"(v.w)
                 : "memory");
}

// ---- ldmatrix, mma.sync ---------------------------------------------------------------------------

__device__ __forceinline__ void load_matrix(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}
__device__ __forceinline__ void load_matrix_transposed(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}
// d[16 x 8] += a[16 x 16] b[16 x 8]
#define MMA_SYNC(TYPE, CPP)                                                                        \
    __device__ __forceinline__ void mma_sync(float *d, const uint32_t *a, uint32_t b0,             \
                                             uint32_t b1, CPP) {                                   \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE                        \
                     ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                  \
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                              \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));              \
    }
MMA_SYNC("bf16", __nv_bfloat16)
MMA_SYNC("f16", __half)
#undef MMA_SYNC

__device__ __forceinline__ uint32_t pack(float low, float high, __nv_bfloat16) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t *>(&pair);
}
__device__ __forceinline__ uint32_t pack(float low, float high, __half) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t *>(&pair);
}
// The two elements that pack() has packed.
__device__ __forceinline__ float2 unpack(uint32_t pair, __nv_bfloat16) {
    return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162 *>(&pair));
}
__device__ __forceinline__ float2 unpack(uint32_t pair, __half) {
    return __half22float2(*reinterpret_cast<const __half2 *>(&pair));
}

inline constexpr float kLog2e = 1.4426950408889634f;

// 2^x; ex2.approx: 2 ulp, 0 for -inf.
__device__ __forceinline__ float exp2_approximate(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// 1 / x; rcp.approx: 1 ulp, 0 for inf.
__device__ __forceinline__ float reciprocal_approximate(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// x / (1 + exp(-x)), to a few ulp.
__device__ __forceinline__ float silu_approximate(float x) {
    return x * reciprocal_approximate(1.0f + exp2_approximate(-kLog2e * x));
}

} // namespace batchllm::cuda
