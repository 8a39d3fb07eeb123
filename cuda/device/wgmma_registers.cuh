// wgmma of 64 x N: d (+)= A[64 x 16] B[16 x N] of 2-byte elements, or A[64 x 32] B[32 x N] of e4m3; A from registers, as
// for mma.sync; B from shared memory, K-major. accumulate 0 overwrites. A thread has N / 2 sums; d points to the first, so
// that they may be part of an array. wgmma_rs_minus: d (-)= A B.
#pragma once

#include <type_traits>

#include <cuda_fp8.h>

#include "device/wgmma.cuh"

namespace batchllm::cuda {

// A, B and P: the numbers of the operands after the sums, four for A; the last arguments name these
// operands.
#define WGMMA_RS(NAME, SIGN, TYPE, CPP, K, MAJOR, N, LIST, A0, A1, A2, A3, B, P, ...)              \
    __device__ __forceinline__ void NAME(float *d, const uint32_t *a, uint64_t b, int accumulate,  \
                                         std::integral_constant<int, N>, CPP) {                    \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P ", 0;\n"                              \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k" #K ".f32." TYPE "." TYPE " {" LIST \
                     "}, {%" #A0 ",%" #A1 ",%" #A2 ",%" #A3 "}, %" #B ", p, " SIGN ", 1" MAJOR     \
                     ";\n}"                                                                        \
                     : __VA_ARGS__                                                                 \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));       \
    }
#define WGMMA_RS_ALL(TYPE, CPP, K, MAJOR)                                                          \
    WGMMA_RS(wgmma_rs, "1", TYPE, CPP, K, MAJOR, 80, LIST40, 40, 41, 42, 43, 44, 45, R32(d, 0),    \
             R8(d, 32))                                                                            \
    WGMMA_RS(wgmma_rs, "1", TYPE, CPP, K, MAJOR, 96, LIST48, 48, 49, 50, 51, 52, 53, R32(d, 0),    \
             R8(d, 32), R8(d, 40))                                                                 \
    WGMMA_RS(wgmma_rs, "1", TYPE, CPP, K, MAJOR, 112, LIST56, 56, 57, 58, 59, 60, 61, R32(d, 0),   \
             R8(d, 32), R8(d, 40), R8(d, 48))                                                      \
    WGMMA_RS(wgmma_rs, "1", TYPE, CPP, K, MAJOR, 128, LIST64, 64, 65, 66, 67, 68, 69, R32(d, 0),   \
             R32(d, 32))                                                                           \
    WGMMA_RS(wgmma_rs, "1", TYPE, CPP, K, MAJOR, 16, LIST8, 8, 9, 10, 11, 12, 13, R8(d, 0))        \
    WGMMA_RS(wgmma_rs, "1", TYPE, CPP, K, MAJOR, 32, LIST16, 16, 17, 18, 19, 20, 21, R8(d, 0),     \
             R8(d, 8))                                                                             \
    WGMMA_RS(wgmma_rs, "1", TYPE, CPP, K, MAJOR, 48, LIST24, 24, 25, 26, 27, 28, 29, R8(d, 0),     \
             R8(d, 8), R8(d, 16))                                                                  \
    WGMMA_RS(wgmma_rs, "1", TYPE, CPP, K, MAJOR, 64, LIST32, 32, 33, 34, 35, 36, 37, R32(d, 0))    \
    WGMMA_RS(wgmma_rs_minus, "-1", TYPE, CPP, K, MAJOR, 64, LIST32, 32, 33, 34, 35, 36, 37,        \
             R32(d, 0))

WGMMA_RS_ALL("bf16", __nv_bfloat16, 16, ", 0")
WGMMA_RS_ALL("f16", __half, 16, ", 0")
WGMMA_RS_ALL("e4m3", __nv_fp8_e4m3, 32, "")
#undef WGMMA_RS_ALL
#undef WGMMA_RS

} // namespace batchllm::cuda
