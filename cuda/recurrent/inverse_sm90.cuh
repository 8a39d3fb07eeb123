// T = (1 + A)^-1 of a chunk (chunk.h) by one warpgroup of sm_90, each warp 16 of the rows, without rounding to 16 bits.
#pragma once

#include "attention/hopper.cuh"
#include "recurrent/chunk.cuh"

namespace batchllm::cuda {

constexpr int kGroup = 128; // threads of a warpgroup
constexpr int kSquare = 16; // rows of a warp
constexpr int kSquares = kStateChunk / kSquare;

// Of a warpgroup's 64 by 64 sums a warp's squares of 16 by 16, in mma's accumulator layout.
using SquareSums = float[kSquares][8];

// 16 rows: 16 numbers in f16, then what was rounded off them.
using SquareTile = Tile<2 * kSquare>;

struct InverseShared { // of a warpgroup
    // What warps hand to others, row after row: N, and D at the end of its row (invert).
    alignas(
        128) unsigned char squares[kSquares * (kSquares - 1) / 2][kSquare * SquareTile::kRowBytes];
};

// The lane, read anew: what follows from it is not kept in registers from chunk to chunk.
__device__ __forceinline__ int lane_anew() {
    unsigned lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return static_cast<int>(lane % 32); // its range is known then
}

// A square as an operand of products in more than 16 bits: numbers in f16, and what was rounded off.
struct Split {
    uint32_t high[4], low[4];

    __device__ __forceinline__ Split() {}
    // As A.
    __device__ __forceinline__ explicit Split(const float (&x)[8]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float first = x[2 * i], second = x[2 * i + 1];
            high[i] = pack(first, second, __half());
            const float2 rounded = __half22float2(*reinterpret_cast<const __half2 *>(&high[i]));
            low[i] = pack(first - rounded.x, second - rounded.y, __half());
        }
    }
    // As B, of what is an A.
    __device__ __forceinline__ Split as_right() const {
        Split other;
#pragma unroll
        for (int i = 0; i < 4; ++i)
            other.high[i] = transposed(high[i]), other.low[i] = transposed(low[i]);
        return other;
    }
    // From and to shared memory, where other warps read it as B.
    __device__ __forceinline__ void store(const SquareTile &to) const {
        const int lane = lane_anew();
        store_matrix(to.at(lane % 16, lane / 16), high);
        store_matrix(to.at(lane % 16, lane / 16 + 2), low);
    }
    __device__ __forceinline__ void load_right(const SquareTile &from) {
        const int lane = lane_anew();
        load_matrix_transposed(high, from.at(lane % 16, lane / 16));
        load_matrix_transposed(low, from.at(lane % 16, lane / 16 + 2));
    }
};

// sums += a b, but for the product of what was rounded off both. Two chains of products are shorter than one.
__device__ __forceinline__ void multiply(float (&sums)[8], const Split &a, const Split &b) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
        float small[4] = {};
        mma_sync(sums + 4 * n, a.high, b.high[2 * n], b.high[2 * n + 1], __half());
        mma_sync(small, a.low, b.high[2 * n], b.high[2 * n + 1], __half());
        mma_sync(small, a.high, b.low[2 * n], b.low[2 * n + 1], __half());
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[4 * n + e] += small[e];
    }
}

// What a lane's pair of rows of 8 by 8 is as an operand of products of 16 by 8 by 8.
struct SplitPair {
    uint32_t high, low;

    __device__ __forceinline__ SplitPair(float first, float second) {
        high = pack(first, second, __half());
        const float2 rounded = __half22float2(*reinterpret_cast<const __half2 *>(&high));
        low = pack(first - rounded.x, second - rounded.y, __half());
    }
};

// x, y = a times b: 8 by 8, but for the product of what was rounded off both; b: as an A.
__device__ __forceinline__ void multiply_eights(const SplitPair &a, const SplitPair &b, float *x,
                                                float *y) {
    float sums[4] = {}, small[4] = {};
    const uint32_t high = transposed(b.high), low = transposed(b.low);
    const auto add = [](float(&to)[4], uint32_t left, uint32_t right) { // rows 8 to 15 are of use
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, "
                     "{%6}, {%0,%1,%2,%3};"
                     : "+f"(to[0]), "+f"(to[1]), "+f"(to[2]), "+f"(to[3])
                     : "r"(0), "r"(left), "r"(right));
    };
    add(sums, a.high, high);
    add(small, a.low, high);
    add(small, a.high, low);
    *x = sums[2] + small[2], *y = sums[3] + small[3];
}

// Two of 8 by 8, each = (1 - itself)^-1, of zeros but below its diagonal; a lane has columns 2 (lane % 4) and the next
// of row lane / 4. By forward substitution in f32, two rows at a time: with X' the second one without the first,
//     X_r += (a_rk + a_r,k+1 a_k+1,k) X_k + a_r,k+1 X'_k+1
// of which only X_k and X'_k+1 have to be waited for.
__device__ __forceinline__ void invert_eights(float (&squares)[2][2]) {
    const int lane = lane_anew(), row = lane / 4, column = lane % 4;
    float inverse[2][2];
#pragma unroll
    for (int k = 0; k < 8; k += 2) {
#pragma unroll
        for (int s = 0; s < 2; ++s) {
            const float(&a)[2] = squares[s];
            const float second = __shfl_sync(~0u, a[1], k / 2, 4);
            const float first = __shfl_sync(~0u, a[0], k / 2, 4) +
                                second * __shfl_sync(~0u, a[0], (k + 1) * 4 + k / 2);
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                float &x = inverse[s][e];
                if (k == 0) { // nothing has changed them yet
                    x = row == 2 * column + e ? 1.0f : 0.0f;
                    if (column == 0) x += e == 0 ? first : second;
                } else {
                    float sum = first * __shfl_sync(~0u, x, k * 4 + column);
                    if (k < 6) sum += second * __shfl_sync(~0u, x, (k + 1) * 4 + column);
                    x += sum;
                }
            }
        }
    }
#pragma unroll
    for (int s = 0; s < 2; ++s) {
#pragma unroll
        for (int e = 0; e < 2; ++e) squares[s][e] = inverse[s][e];
    }
}

// square = (1 - square)^-1, of zeros but below its diagonal: its two on the diagonal, then what is below these.
__device__ __forceinline__ void invert_square(float (&square)[8]) {
    const SplitPair below(square[2], square[3]);
    float eights[2][2] = {{square[0], square[1]}, {square[6], square[7]}};
    invert_eights(eights);
    square[0] = eights[0][0], square[1] = eights[0][1];
    square[6] = eights[1][0], square[7] = eights[1][1];
    multiply_eights(SplitPair(square[6], square[7]), below, square + 2, square + 3);
    multiply_eights(SplitPair(square[2], square[3]), SplitPair(square[0], square[1]), square + 2,
                    square + 3);
}

// A warp's rows of T; see invert. own: its D; right: its squares of `across`. For each warp its own instructions, so that
// products that do not wait for each other are under way together.
template <int kWarp> __device__ __forceinline__ void invert_rows(const float (&own)[8],
                                                                 const Split (&right)[kSquares - 1],
                                                                 int group, InverseShared *shared,
                                                                 SquareSums &inverse) {
    const auto square = [&](int row, int column) {
        return SquareTile{shared_address(shared->squares[row * (row + 1) / 2 + column])};
    };
    {
        const Split diagonal(own);
        if (kWarp + 1 < kSquares) diagonal.store(square(kWarp, kWarp));
#pragma unroll
        for (int n = 0; n < kSquares; ++n) {
#pragma unroll
            for (int e = 0; e < 8; ++e) inverse[n][e] = n == kWarp ? own[e] : 0.0f;
        }
#pragma unroll
        for (int j = kWarp - 1; j >= 0; --j) multiply(inverse[j], diagonal, right[j]);
#pragma unroll
        for (int j = kWarp - 1; j >= 0; --j) {
            if (kWarp + 1 < kSquares) Split(inverse[j]).store(square(kWarp, j));
        }
    }
    named_barrier(1 + group, kGroup);
    Split left;
    const auto finish = [&](int k) { // T_k of Y_k
        Split other;
        other.load_right(square(k, k));
#pragma unroll
        for (float &x : inverse[k]) x = 0;
        multiply(inverse[k], left, other);
    };
#pragma unroll
    for (int k = kWarp - 1; k >= 0; --k) {
        left = Split(inverse[k]);
#pragma unroll
        for (int j = k - 1; j >= 0; --j) {
            Split other;
            other.load_right(square(k, j));
            multiply(inverse[j], left, other);
        }
        finish(k);
    }
}

// T = (1 - across)^-1, of which each warp has its 16 rows. With D_i its square of T on the diagonal, a warp makes
// N_ij = D_i across_ij by itself, then from right to left, with N and D of the warps before it,
//     Y_ij = N_ij + Y_i,j+1 N_j+1,j + .. + Y_i,i-1 N_i-1,j    T_ij = Y_ij D_j
// None of these grows: no powers of `across` are taken. Of the 64 rows those of `used` warps: the others' T is 0.
__device__ __forceinline__ void invert(const SquareSums &across, int used, int group, int warp,
                                       InverseShared *shared, SquareSums &inverse) {
    if (warp >= used) {
#pragma unroll
        for (auto &square : inverse) {
#pragma unroll
            for (float &x : square) x = 0;
        }
        named_barrier(1 + group, kGroup);
        return;
    }
    float own[8];
#pragma unroll
    for (int n = 0; n < kSquares; ++n) {
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            if (n == warp) own[e] = across[n][e];
        }
    }
    Split right[kSquares - 1];
#pragma unroll
    for (int j = 0; j + 1 < kSquares; ++j) right[j] = Split(across[j]).as_right();
    invert_square(own);
    switch (warp) {
    case 0:
        return invert_rows<0>(own, right, group, shared, inverse);
    case 1:
        return invert_rows<1>(own, right, group, shared, inverse);
    case 2:
        return invert_rows<2>(own, right, group, shared, inverse);
    case 3:
        return invert_rows<3>(own, right, group, shared, inverse);
    }
}

} // namespace batchllm::cuda
