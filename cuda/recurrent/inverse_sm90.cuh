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
    // What warps hand to others: squares of T, row after row.
    alignas(
        128) unsigned char squares[kSquares * (kSquares - 1) / 2][kSquare * SquareTile::kRowBytes];
    alignas(128) unsigned char staging[kSquares][kSquare * 128]; // a warp's own
};

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
    __device__ __forceinline__ void both(int i, float *x) const { // an A's pair
        const float2 a = __half22float2(*reinterpret_cast<const __half2 *>(&high[i]));
        const float2 b = __half22float2(*reinterpret_cast<const __half2 *>(&low[i]));
        x[0] = a.x + b.x, x[1] = a.y + b.y;
    }
    // As B, of what is an A.
    __device__ __forceinline__ Split as_right() const {
        Split other;
#pragma unroll
        for (int i = 0; i < 4; ++i) other.high[i] = turned(high[i]), other.low[i] = turned(low[i]);
        return other;
    }
    // From and to shared memory, where other warps read it as B.
    __device__ __forceinline__ void store(const SquareTile &to) const {
        const int lane = threadIdx.x % 32;
        store_matrix(to.at(lane % 16, lane / 16), high);
        store_matrix(to.at(lane % 16, lane / 16 + 2), low);
    }
    __device__ __forceinline__ void load_right(const SquareTile &from) {
        from.load_b(high, 0, 0);
        from.load_b(low, 0, kSquare);
    }
};

// sums += a b, but for the product of what was rounded off both
__device__ __forceinline__ void multiply(float (&sums)[8], const Split &a, const Split &b) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
        mma_sync(sums + 4 * n, a.low, b.high[2 * n], b.high[2 * n + 1], __half());
        mma_sync(sums + 4 * n, a.high, b.low[2 * n], b.low[2 * n + 1], __half());
        mma_sync(sums + 4 * n, a.high, b.high[2 * n], b.high[2 * n + 1], __half());
    }
}

// square = (1 - square)^-1, of zeros but below its diagonal, by forward substitution in f32: a lane has a column.
__device__ __forceinline__ void invert_square(float (&square)[8], float *scratch) {
    constexpr int kTurned = kSquare + 4, kRows = kSquare + 8; // floats from row to row
    const int lane = threadIdx.x % 32;
    const auto row = [&](int e) { return lane / 4 + e / 2 % 2 * 8; };
    const auto column = [&](int e) { return e / 4 * 8 + lane % 4 * 2 + e % 2; };
#pragma unroll
    for (int e = 0; e < 8; ++e) scratch[column(e) * kTurned + row(e)] = square[e];
    __syncwarp();
    float found[kSquare];
#pragma unroll
    for (int r = 0; r < kSquare; ++r) found[r] = r == lane % kSquare ? 1.0f : 0.0f;
#pragma unroll
    for (int k = 0; k + 1 < kSquare; ++k) {
        float a[kSquare];
#pragma unroll
        for (int r = (k + 1) / 4 * 4; r < kSquare; r += 4) {
            const float4 four = *reinterpret_cast<const float4 *>(scratch + k * kTurned + r);
            a[r] = four.x, a[r + 1] = four.y, a[r + 2] = four.z, a[r + 3] = four.w;
        }
#pragma unroll
        for (int r = k + 1; r < kSquare; ++r) found[r] += a[r] * found[k];
    }
    __syncwarp();
    if (lane < kSquare) {
#pragma unroll
        for (int r = 0; r < kSquare; ++r) scratch[r * kRows + lane] = found[r];
    }
    __syncwarp();
#pragma unroll
    for (int e = 0; e < 8; e += 2) {
        const float2 two = *reinterpret_cast<const float2 *>(scratch + row(e) * kRows + column(e));
        square[e] = two.x, square[e + 1] = two.y;
    }
}

// T = (1 - across)^-1, of which each warp has its 16 rows: their square on the diagonal D is inverted by itself, the
// others are D times what the warp's `across` and the rows of T above make. The warps take turns to hand out theirs. Of
// the 64 rows those of `used` warps: the others' T is 0.
__device__ __forceinline__ void invert(const SquareSums &across, int used, int group, int warp,
                                       InverseShared *shared, SquareSums &inverse) {
    float own[8];
#pragma unroll
    for (int n = 0; n < kSquares; ++n) {
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            if (n == warp) own[e] = across[n][e];
            inverse[n][e] = 0;
        }
    }
    if (warp < used) invert_square(own, reinterpret_cast<float *>(shared->staging[warp]));
    const Split diagonal(own);
    const auto square = [&](int row, int column) {
        return SquareTile{shared_address(shared->squares[row * (row + 1) / 2 + column])};
    };
#pragma unroll
    for (int m = 0; m < kSquares; ++m) {
        if (m >= used) break;
        if (warp == m) {
#pragma unroll
            for (int j = 0; j < m; ++j) {
                const Split right = Split(inverse[j]).as_right();
#pragma unroll
                for (float &x : inverse[j]) x = 0;
                multiply(inverse[j], diagonal, right);
                if (m + 1 < kSquares) Split(inverse[j]).store(square(m, j));
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) diagonal.both(i, inverse[m] + 2 * i);
            if (m + 1 < kSquares) diagonal.store(square(m, m));
        }
        if (m + 1 == kSquares) break;
        named_barrier(1 + group, kGroup);
        if (warp > m && warp < used) {
            const Split left(across[m]);
#pragma unroll
            for (int j = 0; j <= m; ++j) {
                Split right;
                right.load_right(square(m, j));
                multiply(inverse[j], left, right);
            }
        }
    }
}

} // namespace batchllm::cuda
