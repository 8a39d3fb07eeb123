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

// Two elements.
__device__ __forceinline__ float2 widen(uint32_t pair, __nv_bfloat16) {
    return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162 *>(&pair));
}
__device__ __forceinline__ float2 widen(uint32_t pair, __half) {
    return __half22float2(*reinterpret_cast<const __half2 *>(&pair));
}

__device__ __forceinline__ AdapterPart load_part(const AdapterEntry *entry, int part) {
    const int4 words = __ldg(reinterpret_cast<const int4 *>(entry->parts + part));
    return {words.x, words.y, words.z, __int_as_float(words.w)};
}

// What of a step's t a product's epilogue reads.
struct AdaptedSums {
    const AdapterEntry *const *entries; // AdapterWork's; null: no row has an adapter
    int32_t product;
    const float *t; // [ranges, t_rows, t_stride]
    int32_t t_rows, t_stride, ranges;

    AdaptedSums() = default;
    explicit AdaptedSums(const AdapterArguments *a)
        : entries(a == nullptr ? nullptr : a->work.entries), product(a == nullptr ? 0 : a->product),
          t(a == nullptr ? nullptr : a->t), t_rows(a == nullptr ? 0 : a->t_rows),
          t_stride(a == nullptr ? 0 : a->t_stride),
          ranges(a == nullptr ? 0 : adapter_ranges(a->columns)) {}
};

// Four columns of t, scaled and rounded to T; zeros if the row is not `there`.
template <typename T> __device__ __forceinline__ uint2 four_of_t(const AdaptedSums &s, int32_t row,
                                                                 int32_t column, float scale,
                                                                 bool there) {
    float4 sum{};
    if (there) {
        const float *from = s.t + int64_t{row} * s.t_stride + column;
        for (int32_t r = 0; r < s.ranges; ++r, from += int64_t{s.t_rows} * s.t_stride) {
            const float4 v = __ldg(reinterpret_cast<const float4 *>(from));
            sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
        }
    }
    return {pack(scale * sum.x, scale * sum.y, T()), pack(scale * sum.z, scale * sum.w, T())};
}

// Where the lane's four ranks of B's row `column + lane / 4` are: packed_b()'s units, in halves. For eights of columns.
__device__ __forceinline__ int32_t unit_of(int32_t eight, int lane) {
    return (lane / 4 / 2 / 2) * 32 + (eight % 4 * 2 + lane / 4 % 2) * 4 + lane % 4;
}

// sums: 4 of each of Eights eights of columns, from `column` of the part on, a multiple of 8 Eights; B's rows begin there.
// The warp's rows are `row` on; members: which of the 16 have this adapter.
template <typename T, int Eights>
__device__ __forceinline__ void add_adapted(const AdaptedSums &s, const AdapterEntry *entry,
                                            const AdapterPart &part, int32_t row, uint32_t members,
                                            int32_t column, float *sums) {
    static_assert(Eights % 8 == 0);
    const int lane = threadIdx.x % 32;
    const bool low = members >> (lane / 4) & 1, high = members >> (lane / 4 + 8) & 1;
    const int32_t own = row + lane / 4;
    const uint2 *b =
        reinterpret_cast<const uint2 *>(static_cast<const uint4 *>(entry->b) + part.b_units) +
        int64_t{column / kPackedRows} * part.rank * (kPackedRows / 4);
    const int32_t group = part.rank * (kPackedRows / 4); // halves of units
    const int32_t half = lane / 4 / 2 % 2;               // of a unit
    int32_t k = 0;
    for (; k + 16 <= part.rank; k += 16) {
        const uint2 of_low = four_of_t<T>(s, own, part.first + k + lane % 4 * 4, part.scale, low);
        const uint2 of_high =
            four_of_t<T>(s, own + 8, part.first + k + lane % 4 * 4, part.scale, high);
        const uint32_t x[4] = {of_low.x, of_high.x, of_low.y, of_high.y};
#pragma unroll
        for (int i = 0; i < Eights; i += 8) {
            uint2 w[8];
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                w[j] = __ldg(b + (i + j) / 4 * group + k * (kPackedRows / 4) +
                             2 * unit_of(i + j, lane) + half);
            }
#pragma unroll
            for (int j = 0; j < 8; ++j) mma_sync(sums + 4 * (i + j), x, w[j].x, w[j].y, T());
        }
    }
    if (k == part.rank) return;
    // Eight ranks: a lane's two are a quarter of its unit.
    const int32_t fours = k + lane % 4 / 2 * 4;
    const uint2 of_low = four_of_t<T>(s, own, part.first + fours, part.scale, low);
    const uint2 of_high = four_of_t<T>(s, own + 8, part.first + fours, part.scale, high);
    const uint32_t x0 = lane % 2 == 0 ? of_low.x : of_low.y;
    const uint32_t x1 = lane % 2 == 0 ? of_high.x : of_high.y;
    const auto *words = reinterpret_cast<const uint32_t *>(b);
#pragma unroll
    for (int i = 0; i < Eights; ++i) {
        const int32_t unit = (i % 4 * 2 + lane / 4 % 2) * 4 + lane % 4;
        const uint32_t w =
            __ldg(words + 2 * (i / 4 * group + k * (kPackedRows / 4)) + 4 * unit + lane / 4 / 2);
        mma_sync_8(sums + 4 * i, x0, x1, w, T());
    }
}

// Calls act with each adapter of the warp's 16 rows and which of them have it. rows: that there are.
template <typename Act> __device__ __forceinline__ void
for_each_adapter(const AdaptedSums &s, int32_t row, int32_t rows, const Act &act) {
    const int32_t own = row + static_cast<int32_t>(threadIdx.x % 16);
    const auto *entries = reinterpret_cast<const unsigned long long *>(s.entries);
    const unsigned long long mine = own < rows ? __ldg(entries + own) : 0;
    uint32_t left = __ballot_sync(~0u, mine != 0) & 0xffff;
    while (left != 0) {
        const unsigned long long first = __shfl_sync(~0u, mine, __ffs(static_cast<int>(left)) - 1);
        const uint32_t members = __ballot_sync(~0u, mine == first) & 0xffff;
        left &= ~members;
        act(reinterpret_cast<const AdapterEntry *>(first) + s.product, members);
    }
}

} // namespace batchllm::cuda
