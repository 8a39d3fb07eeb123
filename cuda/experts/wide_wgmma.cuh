// wgmma of 64 x 256, which attention has no use for: d (+)= A[64 x 16] B[16 x 256], both from shared memory,
// K-major; accumulate 0 overwrites.
#pragma once

#include "attention/hopper.cuh"

namespace batchllm::cuda {

#define LIST128                                                                                    \
    LIST64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84," \
           "%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104," \
           "%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121," \
           "%122,%123,%124,%125,%126,%127"
#define WGMMA(TYPE, CPP)                                                                           \
    __device__ __forceinline__ void wgmma_ss(float(&d)[128], uint64_t a, uint64_t b,               \
                                             int accumulate, CPP) {                                \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"                                 \
                     "wgmma.mma_async.sync.aligned.m64n256k16.f32." TYPE "." TYPE " {" LIST128     \
                     "}, %128, %129, p, 1, 1, 0, 0;\n}"                                            \
                     : R32(d, 0), R32(d, 32), R32(d, 64), R32(d, 96)                               \
                     : "l"(a), "l"(b), "r"(accumulate));                                           \
    }
WGMMA("bf16", __nv_bfloat16)
WGMMA("f16", __half)
#undef WGMMA
#undef LIST128

} // namespace batchllm::cuda
