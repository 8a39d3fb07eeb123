// An adapter's change of 16 rows by 8 columns of y, added to sums that are in a warp's registers as mma.sync has them: for the
// epilogues of products (adapters.h).
#pragma once

#include "adapters/adapters.h"
#include "attention/mma.cuh"

namespace batchllm::cuda {

// d[16 x 8] += a[16 x 8] b[8 x 8]
#define MMA_SYNC_8(TYPE, CPP)                                                                      \
    __device__ __forceinline__ void mma_sync_8(float *d, uint32_t a0, uint32_t a1, uint32_t b,     \
                                               CPP) {                                              \
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32." TYPE "." TYPE                         \
                     ".f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"                           \
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                              \
                     : "r"(a0), "r"(a1), "r"(b));                                                  \
    }
MMA_SYNC_8("bf16", __nv_bfloat16)
MMA_SYNC_8("f16", __half)
#undef MMA_SYNC_8

// What sixteen ranks, or eight, of t add to 16 rows by kPackedRows columns of y. The lane's units of B are as packed_b() has them.
template <typename T>
__device__ __forceinline__ void add_sixteen_ranks(const uint32_t (&t)[4], const uint4 &first,
                                                  const uint4 &second, float (&sums)[4][4]) {
    mma_sync(sums[0], t, first.x, first.y, T());
    mma_sync(sums[1], t, first.z, first.w, T());
    mma_sync(sums[2], t, second.x, second.y, T());
    mma_sync(sums[3], t, second.z, second.w, T());
}
template <typename T> __device__ __forceinline__ void
add_eight_ranks(uint32_t low, uint32_t high, const uint4 &unit, float (&sums)[4][4]) {
    mma_sync_8(sums[0], low, high, unit.x, T());
    mma_sync_8(sums[1], low, high, unit.y, T());
    mma_sync_8(sums[2], low, high, unit.z, T());
    mma_sync_8(sums[3], low, high, unit.w, T());
}

// Adds to sums, 4 of each of Eights eights of columns of y, what one part of an adapter adds to the warp's 16 rows. In shared
// memory are t, of the first of these rows and of the part's first rank on, and B of 8 Eights columns, as packed_b() has it.
// members: which of the 16 rows have this adapter.
template <typename T, int Eights>
__device__ __forceinline__ void add_adapted(const T *t, int32_t t_stride, const unsigned char *b,
                                            int32_t rank, uint32_t members, float *sums) {
    static_assert(Eights % 8 == 0);
    const int lane = threadIdx.x % 32;
    const bool low = members >> (lane / 4) & 1, high = members >> (lane / 4 + 8) & 1;
    const T *const of_low = t + lane / 4 * t_stride, *const of_high = of_low + 8 * t_stride;
    const int32_t group = rank * kPackedRows * int32_t{sizeof(T)}; // of B
    const int half = lane / 4 / 2 % 2;                             // of a unit
    const auto four = [](const T *from, bool there) {
        return there ? *reinterpret_cast<const uint2 *>(from) : uint2{};
    };
    const auto unit_of = [&](int eight) {
        return lane / 16 * 32 + (eight % 4 * 2 + lane / 4 % 2) * 4 + lane % 4;
    };
    int32_t k = 0;
    for (; k + 16 <= rank; k += 16) {
        const uint2 x0 = four(of_low + k + lane % 4 * 4, low);
        const uint2 x1 = four(of_high + k + lane % 4 * 4, high);
        const uint32_t x[4] = {x0.x, x1.x, x0.y, x1.y};
        const unsigned char *const of_k = b + k * kPackedRows * sizeof(T) + 8 * half;
#pragma unroll
        for (int i = 0; i < Eights; i += 8) {
            uint2 w[8];
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                w[j] = *reinterpret_cast<const uint2 *>(of_k + (i + j) / 4 * group +
                                                        16 * unit_of(i + j));
            }
#pragma unroll
            for (int j = 0; j < 8; ++j) mma_sync(sums + 4 * (i + j), x, w[j].x, w[j].y, T());
        }
    }
    if (k == rank) return;
    // Eight ranks: a lane's two are a quarter of its unit.
    const uint2 x0 = four(of_low + k + lane % 4 / 2 * 4, low);
    const uint2 x1 = four(of_high + k + lane % 4 / 2 * 4, high);
    const uint32_t first = lane % 2 == 0 ? x0.x : x0.y, second = lane % 2 == 0 ? x1.x : x1.y;
#pragma unroll
    for (int i = 0; i < Eights; ++i) {
        const int unit = (i % 4 * 2 + lane / 4 % 2) * 4 + lane % 4;
        const uint32_t w = *reinterpret_cast<const uint32_t *>(
            b + i / 4 * group + k * kPackedRows * sizeof(T) + 16 * unit + 4 * (lane / 4 / 2));
        mma_sync_8(sums + 4 * i, first, second, w, T());
    }
}

} // namespace batchllm::cuda
