// wgmma of 64 x N: d (+)= A[64 x K] B[K x N], both from shared memory, K-major; accumulate 0
// overwrites. A thread has N / 2 sums. WGMMA_SS defines one function, WGMMA_SS_ALL all functions of
// a type: K is 32 bytes of it; MAJOR says that neither operand is transposed, for types that
// support transposition.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace batchllm::cuda {

#define R8(d, i)                                                                                   \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),    \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define R32(d, i) R8(d, i), R8(d, i + 8), R8(d, i + 16), R8(d, i + 24)
#define LIST8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define LIST16 LIST8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define LIST24 LIST16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define LIST32 LIST24 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define LIST40 LIST32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define LIST48 LIST40 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define LIST56 LIST48 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define LIST64 LIST56 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define LIST72 LIST64 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define LIST80 LIST72 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define LIST88 LIST80 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define LIST96 LIST88 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define LIST104 LIST96 ",%96,%97,%98,%99,%100,%101,%102,%103"
#define LIST112 LIST104 ",%104,%105,%106,%107,%108,%109,%110,%111"
#define LIST120 LIST112 ",%112,%113,%114,%115,%116,%117,%118,%119"
#define LIST128 LIST120 ",%120,%121,%122,%123,%124,%125,%126,%127"

// A, B and P: the numbers of the operands after the sums; the last arguments name these operands.
#define WGMMA_SS(TYPE, CPP, K, MAJOR, N, LIST, A, B, P, ...)                                       \
    __device__ __forceinline__ void wgmma_ss(float(&d)[N / 2], uint64_t a, uint64_t b,             \
                                             int accumulate, CPP) {                                \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P ", 0;\n"                              \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k" #K ".f32." TYPE "." TYPE " {" LIST \
                     "}, %" #A ", %" #B ", p, 1, 1" MAJOR ";\n}"                                   \
                     : __VA_ARGS__                                                                 \
                     : "l"(a), "l"(b), "r"(accumulate));                                           \
    }
#define WGMMA_SS_ALL(TYPE, CPP, K, MAJOR)                                                          \
    WGMMA_SS(TYPE, CPP, K, MAJOR, 16, LIST8, 8, 9, 10, R8(d, 0))                                   \
    WGMMA_SS(TYPE, CPP, K, MAJOR, 32, LIST16, 16, 17, 18, R8(d, 0), R8(d, 8))                      \
    WGMMA_SS(TYPE, CPP, K, MAJOR, 48, LIST24, 24, 25, 26, R8(d, 0), R8(d, 8), R8(d, 16))           \
    WGMMA_SS(TYPE, CPP, K, MAJOR, 64, LIST32, 32, 33, 34, R32(d, 0))                               \
    WGMMA_SS(TYPE, CPP, K, MAJOR, 80, LIST40, 40, 41, 42, R32(d, 0), R8(d, 32))                    \
    WGMMA_SS(TYPE, CPP, K, MAJOR, 96, LIST48, 48, 49, 50, R32(d, 0), R8(d, 32), R8(d, 40))         \
    WGMMA_SS(TYPE, CPP, K, MAJOR, 112, LIST56, 56, 57, 58, R32(d, 0), R8(d, 32), R8(d, 40),        \
             R8(d, 48))                                                                            \
    WGMMA_SS(TYPE, CPP, K, MAJOR, 128, LIST64, 64, 65, 66, R32(d, 0), R32(d, 32))

// 256 columns, for 2-byte types.
#define WGMMA_SS_256(TYPE, CPP)                                                                    \
    WGMMA_SS(TYPE, CPP, 16, ", 0, 0", 256, LIST128, 128, 129, 130, R32(d, 0), R32(d, 32),          \
             R32(d, 64), R32(d, 96))

WGMMA_SS_ALL("bf16", __nv_bfloat16, 16, ", 0, 0")
WGMMA_SS_ALL("f16", __half, 16, ", 0, 0")
WGMMA_SS_256("bf16", __nv_bfloat16)
WGMMA_SS_256("f16", __half)

} // namespace batchllm::cuda
