// What the kernels that go from chunk to chunk share, whatever computes their products. Four warps have one value head
// of one item and 64 of its columns, a warp 16 of them: it keeps S^T in the accumulators of its products, and what they
// give becomes an operand of the next ones where it is,
//     N^T = U^T - S^T W^T     results^T = exp(G) S^T q^T + N^T P^T     S^T = exp(G_last) S^T + (exp(G_last - G) N)^T k
#pragma once

#include "recurrent/chunk.cuh"

namespace batchllm::cuda {

inline constexpr int kAcrossColumns = 64; // of S, a block's

using Rows = Tile<kHeadDim>;
using Weights = Tile<kStateChunk>;
using Columns = Tile<kAcrossColumns>;

// In mma's accumulator layout, of the warp's 16 columns: S^T, and what is by tokens. Sum 4 n + e is at row
// lane / 4 + e / 2 * 8 of it, and at column 8 n + lane % 4 * 2 + e % 2.
using StateSums = float[kHeadDim / 2];
using TokenSums = float[kStateChunk / 2];

struct AcrossPlace {
    StateItem item;
    int head, column; // column: the first of the block's
};

// The level's items, heads and columns, one after the other.
struct AcrossPlaces {
    static constexpr int kBlocks = kHeadDim / kAcrossColumns; // of a head
    const DeltaArguments &arguments;
    int first, count; // items; places

    __device__ __forceinline__ explicit AcrossPlaces(const DeltaArguments &a) : arguments(a) {
        const StateLevel level = *a.level;
        first = level.chunked;
        count = (level.end - level.chunked) * a.value_heads * kBlocks;
    }
    __device__ __forceinline__ AcrossPlace at(int i) const {
        const int each = arguments.value_heads * kBlocks;
        return {arguments.items[first + i / each], i % each / kBlocks,
                i % kBlocks * kAcrossColumns};
    }
};

// Calls visit(i, row, column): sums[i] is S at that row, and at that column from the block's first.
template <typename Visit> __device__ __forceinline__ void visit_state(const Visit &visit) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            visit(4 * n + e, 8 * n + lane % 4 * 2 + e % 2, warp * 16 + lane / 4 + e / 2 * 8);
        }
    }
}

template <typename S> __device__ __forceinline__ void
store_state(const DeltaArguments &a, const AcrossPlace &place, const StateSums &state) {
    S *to = state_of<S>(a, place.item.state, place.head) + place.column;
    visit_state(
        [&](int i, int row, int column) { to[row * kHeadDim + column] = from_float<S>(state[i]); });
}

// Two neighbouring tiles of 16 by 8 sums as A of 16 by 16.
template <typename T>
__device__ __forceinline__ void as_operand(uint32_t *a, const float *left, const float *right) {
    a[0] = pack(left[0], left[1], T()), a[1] = pack(left[2], left[3], T());
    a[2] = pack(right[0], right[1], T()), a[3] = pack(right[2], right[3], T());
}

// N^T = U^T - known
template <typename T>
__device__ __forceinline__ void subtract_from(const Columns &u, TokenSums &known) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < kStateChunk; n += 16) {
        uint32_t
            wanted[4]; // tokens n on, the warp's first and second eight columns; tokens n + 8 on
        load_matrix_transposed(wanted, u.at(n + lane % 8 + lane / 16 * 8, warp * 2 + lane / 8 % 2));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 x =
                Pair<T>::wide(*reinterpret_cast<const typename Pair<T>::type *>(&wanted[i]));
            float *sums = known + n / 2 + i / 2 * 4 + i % 2 * 2;
            sums[0] = x.x - sums[0];
            sums[1] = x.y - sums[1];
        }
    }
}

// sums: by exp(G) or, if `to_last`, by exp(G_last - G). decays: the chunk's, both of each token.
template <bool to_last>
__device__ __forceinline__ void decay_tokens(const float2 *decays, TokenSums &sums) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < kStateChunk / 8; ++n) {
        const float4 two = *reinterpret_cast<const float4 *>(decays + 8 * n + lane % 4 * 2);
        const float first = to_last ? two.y : two.x, second = to_last ? two.w : two.z;
        sums[4 * n] *= first, sums[4 * n + 1] *= second;
        sums[4 * n + 2] *= first, sums[4 * n + 3] *= second;
    }
}

__device__ __forceinline__ void decay_state(const float2 *decays, StateSums &state) {
    const float decay = decays[kStateChunk - 1].x;
#pragma unroll
    for (float &x : state) x *= decay;
}

// found: the results of `count` tokens; out: the first one's, at the block's first column
template <typename T> __device__ __forceinline__ void store_results(const TokenSums &found, T *out,
                                                                    int64_t stride, int count) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    out += warp * 16 + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < kStateChunk / 8; ++n) {
        const int token = 8 * n + lane / 4;
#pragma unroll
        for (int half = 0; half < 2; ++half) { // of the columns
            const float *pair = found + 4 * n + 2 * half;
            const uint32_t both = transposed(pack(pair[0], pair[1], T()));
            if (token < count) {
                *reinterpret_cast<uint32_t *>(out + token * stride + 8 * half) = both;
            }
        }
    }
}

template <typename T> __device__ __forceinline__ T *
results_of(const ChunkArguments &c, const AcrossPlace &place, int first) {
    return static_cast<T *>(c.delta.out) +
           (int64_t{place.item.token_begin} + first) * c.delta.values_size() +
           place.head * kHeadDim + place.column;
}

} // namespace batchllm::cuda
