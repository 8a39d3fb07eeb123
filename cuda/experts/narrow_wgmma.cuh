// wgmma of 64 x N for the N that attention has no use for: d (+)= A[64 x 16] B[16 x N], both from shared memory,
// K-major; accumulate 0 overwrites.
#pragma once

#include "attention/hopper.cuh"

namespace batchllm::cuda {

#define LIST8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define LIST24 LIST16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define LIST40 LIST32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define LIST48 LIST40 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define LIST56 LIST48 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define WGMMA(TYPE, CPP)                                                                           \
    __device__ __forceinline__ void wgmma_ss(float(&d)[8], uint64_t a, uint64_t b, int accumulate, \
                                             CPP) {                                                \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %10, 0;\n"                                  \
                     "wgmma.mma_async.sync.aligned.m64n16k16.f32." TYPE "." TYPE " {" LIST8        \
                     "}, %8, %9, p, 1, 1, 0, 0;\n}"                                                \
                     : R8(d, 0)                                                                    \
                     : "l"(a), "l"(b), "r"(accumulate));                                           \
    }                                                                                              \
    __device__ __forceinline__ void wgmma_ss(float(&d)[24], uint64_t a, uint64_t b,                \
                                             int accumulate, CPP) {                                \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %26, 0;\n"                                  \
                     "wgmma.mma_async.sync.aligned.m64n48k16.f32." TYPE "." TYPE " {" LIST24       \
                     "}, %24, %25, p, 1, 1, 0, 0;\n}"                                              \
                     : R8(d, 0), R8(d, 8), R8(d, 16)                                               \
                     : "l"(a), "l"(b), "r"(accumulate));                                           \
    }                                                                                              \
    __device__ __forceinline__ void wgmma_ss(float(&d)[40], uint64_t a, uint64_t b,                \
                                             int accumulate, CPP) {                                \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %42, 0;\n"                                  \
                     "wgmma.mma_async.sync.aligned.m64n80k16.f32." TYPE "." TYPE " {" LIST40       \
                     "}, %40, %41, p, 1, 1, 0, 0;\n}"                                              \
                     : R32(d, 0), R8(d, 32)                                                        \
                     : "l"(a), "l"(b), "r"(accumulate));                                           \
    }                                                                                              \
    __device__ __forceinline__ void wgmma_ss(float(&d)[48], uint64_t a, uint64_t b,                \
                                             int accumulate, CPP) {                                \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %50, 0;\n"                                  \
                     "wgmma.mma_async.sync.aligned.m64n96k16.f32." TYPE "." TYPE " {" LIST48       \
                     "}, %48, %49, p, 1, 1, 0, 0;\n}"                                              \
                     : R32(d, 0), R8(d, 32), R8(d, 40)                                             \
                     : "l"(a), "l"(b), "r"(accumulate));                                           \
    }                                                                                              \
    __device__ __forceinline__ void wgmma_ss(float(&d)[56], uint64_t a, uint64_t b,                \
                                             int accumulate, CPP) {                                \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %58, 0;\n"                                  \
                     "wgmma.mma_async.sync.aligned.m64n112k16.f32." TYPE "." TYPE " {" LIST56      \
                     "}, %56, %57, p, 1, 1, 0, 0;\n}"                                              \
                     : R32(d, 0), R8(d, 32), R8(d, 40), R8(d, 48)                                  \
                     : "l"(a), "l"(b), "r"(accumulate));                                           \
    }
WGMMA("bf16", __nv_bfloat16)
WGMMA("f16", __half)
#undef WGMMA

} // namespace batchllm::cuda
