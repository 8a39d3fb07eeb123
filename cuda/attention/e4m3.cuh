// Keys and values stored in e4m3, converted for products: bytes to f16, exactly.
//
// Products with them are in f16 whatever the model's type: f16 represents every e4m3 number
// exactly, and from 8.9 on the conversion is one instruction. Queries in bf16 then become f16, with
// more digits and a smaller range. Values beyond f16's range are clamped to 65504, where softmax
// sees a single key anyway; values below 2^-24 become zero, which is negligible beside the others.
// Before 8.9 the bits are shifted to where they represent 2^-8 of the number, including NaN.
#pragma once

#include <type_traits>

#include "attention/attention.h"
#include "attention/mma.cuh"

namespace batchllm::cuda {

struct E4m3 { // as a kernel's Stored, which otherwise is the model's type
    unsigned char bits;
};
template <typename Stored> inline constexpr bool kInBytes = std::is_same_v<Stored, E4m3>;
// The type that a kernel for elements T multiplies in if keys and values are stored like this and
// not widened before the launch.
template <typename T, typename Stored> using Factor =
    std::conditional_t<kInBytes<Stored>, __half, T>;

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
inline constexpr float kWidenedUnit = 1; // factor from a widened number to the number itself
// Widens four elements: 0 and 1 into low, 2 and 3 into high.
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
    const uint32_t nan = size + 0x00800080 & 0x40004000; // sets the exponent to f16's greatest
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

// For 16-byte chunk `chunk` of a block of e4m3, [half][Keys keys][64]: the byte offsets of its two
// chunks of 2-byte elements in the block of those.
__device__ __forceinline__ void widened_places(int chunk, uint32_t (&place)[2]) {
    const int row = chunk / 4, logical = chunk % 4 ^ row / 2 % 4;
#pragma unroll
    for (int e = 0; e < 2; ++e) place[e] = row * 128 + ((logical * 2 + e ^ row % 8) << 4);
}

// Converts two elements of a query.
__device__ __forceinline__ uint32_t to_half(uint32_t pair, __half) { return pair; }
__device__ __forceinline__ uint32_t to_half(uint32_t pair, __nv_bfloat16) {
    uint32_t halves;
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" // clamps to 65504; NaN stays NaN
        : "=r"(halves)
        : "f"(__uint_as_float(pair & 0xffff0000)), "f"(__uint_as_float(pair << 16)));
    return halves;
}
template <typename T> __device__ __forceinline__ uint4 to_half(const uint4 &chunk, T) {
    return make_uint4(to_half(chunk.x, T()), to_half(chunk.y, T()), to_half(chunk.z, T()),
                      to_half(chunk.w, T()));
}

// The factors for scores and for O that apply the scales of the KV head.
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
// Both mma fragments are read with the same addresses per lane, in chunks of 16 elements. From K a
// lane gets four neighbouring elements of a key where mma expects two pairs; Q is read in the same
// order. From V it gets two neighbouring columns of two keys, which go to two products: one of the
// even and one of the odd columns.

// Where a lane reads, relative to the first row of the 16 keys; XORed with 32 for chunks 2 and 3.
__device__ __forceinline__ uint32_t lane_in_bytes(int lane) {
    return lane % 16 * 64 + ((lane / 16 ^ lane % 8 / 2) << 4);
}
// Where a lane's four elements of step k begin in a query's row: q[k][row] and q[k][row + 2].
__device__ __forceinline__ int query_column(int k, int lane) { return k * 16 + lane % 4 * 4; }
// Where four of a lane's columns of O are, for d below HeadDim / 16; o[2 d] has the first and the
// third.
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
