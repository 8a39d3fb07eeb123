// Keys and values stored in e4m3, on their way into products: bytes to f16, exactly.
//
// Products with them are in f16 whatever the model's type: every number of e4m3 is exact there, and from 8.9 on
// one instruction away. Queries in bf16 become f16 then: more digits, and less of a range. Where one exceeds
// f16's, it is cut to 65504, beyond which softmax sees one key alone; below 2^-24 it is zero beside the others.
// Before 8.9 the bits are moved to where they mean 2^-8 of the number, NaN included.
#pragma once

#include <type_traits>

#include "attention/attention.h"
#include "attention/mma.cuh"

namespace batchllm::cuda {

struct E4m3 { // as a kernel's Stored; else that is the model's type
    unsigned char bits;
};
template <typename Stored> inline constexpr bool kInBytes = std::is_same_v<Stored, E4m3>;
// What a kernel for elements T multiplies in, where keys and values are stored so and not widened before it.
template <typename T, typename Stored> using Factor =
    std::conditional_t<kInBytes<Stored>, __half, T>;

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
inline constexpr float kWidenedUnit = 1; // what a widened number is to be multiplied by
// Elements 0 and 1 of the four, and 2 and 3.
__device__ __forceinline__ void widen(uint32_t bytes, uint32_t &low, uint32_t &high) {
    asm("{\n"
        ".reg .b16 low, high;\n"
        "mov.b32 {low, high}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, low;\n"
        "cvt.rn.f16x2.e4m3x2 %1, high;\n"
        "}"
        : "=r"(low), "=r"(high)
        : "r"(bytes));
}
#else
inline constexpr float kWidenedUnit = 256;
// x: two elements, each in the high byte of a half.
__device__ __forceinline__ uint32_t widen_pair(uint32_t x) {
    const uint32_t size = x >> 1 & 0x3f803f80;
    const uint32_t nan = size + 0x00800080 & 0x40004000; // with it the exponent is f16's greatest
    return size | nan | (x & 0x80008000);
}
__device__ __forceinline__ void widen(uint32_t bytes, uint32_t &low, uint32_t &high) {
    low = widen_pair(__byte_perm(bytes, 0, 0x1404));
    high = widen_pair(__byte_perm(bytes, 0, 0x3424));
}
#endif

// 16 elements to two chunks of eight.
__device__ __forceinline__ void widen(const uint4 &bytes, uint4 (&chunks)[2]) {
    widen(bytes.x, chunks[0].x, chunks[0].y);
    widen(bytes.y, chunks[0].z, chunks[0].w);
    widen(bytes.z, chunks[1].x, chunks[1].y);
    widen(bytes.w, chunks[1].z, chunks[1].w);
}

// Of 16-byte chunk `chunk` of a block of e4m3, [half][Keys keys][64]: where its two chunks of 2-byte elements stand
// in the block of those, in bytes.
__device__ __forceinline__ void widened_places(int chunk, uint32_t (&place)[2]) {
    const int row = chunk / 4, logical = chunk % 4 ^ row / 2 % 4;
#pragma unroll
    for (int e = 0; e < 2; ++e) place[e] = row * 128 + ((logical * 2 + e ^ row % 8) << 4);
}

// Two elements of a query.
__device__ __forceinline__ uint32_t to_half(uint32_t pair, __half) { return pair; }
__device__ __forceinline__ uint32_t to_half(uint32_t pair, __nv_bfloat16) {
    uint32_t halves;
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" // to 65504 at most; NaN stays
        : "=r"(halves)
        : "f"(__uint_as_float(pair & 0xffff0000)), "f"(__uint_as_float(pair << 16)));
    return halves;
}
template <typename T> __device__ __forceinline__ uint4 to_half(const uint4 &chunk, T) {
    return make_uint4(to_half(chunk.x, T()), to_half(chunk.y, T()), to_half(chunk.z, T()),
                      to_half(chunk.w, T()));
}

// What scores, and O, are to be multiplied by for their KV head's scale.
template <typename Stored>
__device__ __forceinline__ float key_factor(const AttentionArguments &a, int kv_head) {
    if constexpr (!kInBytes<Stored>) return 1;
    return a.k_scale == nullptr ? kWidenedUnit : kWidenedUnit * __ldg(a.k_scale + kv_head);
}
template <typename Stored>
__device__ __forceinline__ float value_factor(const AttentionArguments &a, int kv_head) {
    if constexpr (!kInBytes<Stored>) return 1;
    return a.v_scale == nullptr ? kWidenedUnit : kWidenedUnit * __ldg(a.v_scale + kv_head);
}

// ---- Products of up to 16 query rows with 16 keys, one warp ----
//
// Both fragments of mma are read with the same lanes' addresses, chunk by chunk of 16 elements. Of K a lane gets four
// neighbouring elements of a key where mma wants two and two: Q is read in that order too. Of V it gets two
// neighbouring columns of two keys: they go to two products, of the even and of the odd columns.

// Where a lane reads, from the 16 keys' first row on; exclusive-or'd with 32 for chunks 2 and 3.
__device__ __forceinline__ uint32_t lane_in_bytes(int lane) {
    return lane % 16 * 64 + ((lane / 16 ^ lane % 8 / 2) << 4);
}
// Where in a query's row a lane's elements of step k begin: four, q[k][row] and q[k][row + 2].
__device__ __forceinline__ int query_column(int k, int lane) { return k * 16 + lane % 4 * 4; }
// Where four of a lane's columns of O are, o[2 d] the first and the third: d of HeadDim / 16.
__device__ __forceinline__ int output_column(int d, int lane) { return d * 16 + lane % 4 * 4; }

// s[row, key] += Q K^T. keys: the 16 keys' first row; half: bytes from 64 elements to the next.
template <int HeadDim>
__device__ __forceinline__ void scores_of_bytes(float (&s)[8], const uint32_t (&q)[HeadDim / 16][4],
                                                uint32_t keys, int half, uint32_t lane_offset) {
#pragma unroll
    for (int k = 0; k < HeadDim / 16; k += 2) {
        uint32_t r[4];
        load_matrix(r, keys + k / 4 * half + (lane_offset ^ k % 4 * 16));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            uint32_t b[2];
            widen(r[i], b[0], b[1]);
            mma_sync(s + i % 2 * 4, q[k + i / 2], b[0], b[1], __half());
        }
    }
}
// O += P V, o as output_column() says.
template <int HeadDim>
__device__ __forceinline__ void accumulate_bytes(float *o, const uint32_t (&p)[4], uint32_t values,
                                                 int half, uint32_t lane_offset) {
#pragma unroll
    for (int d = 0; d < HeadDim / 16; d += 2) {
        uint32_t r[4];
        load_matrix_transposed(r, values + d / 4 * half + (lane_offset ^ d % 4 * 16));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            uint32_t even[2], odd[2];
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                widen(__byte_perm(r[2 * i + e], 0, 0x3120), even[e], odd[e]);
            }
            mma_sync(o + (d + i) * 8, p, even[0], even[1], __half());
            mma_sync(o + (d + i) * 8 + 4, p, odd[0], odd[1], __half());
        }
    }
}

} // namespace batchllm::cuda
