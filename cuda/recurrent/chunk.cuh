// What the kernels of chunks share: tiles in shared memory and their operands of mma.sync.
#pragma once

#include "attention/mma.cuh"
#include "recurrent/chunk.h"
#include "recurrent/delta.cuh"

namespace batchllm::cuda {

inline constexpr int kHeadDim = 128; // of keys and of values

// Rows of kColumns 16-bit elements, eight of them a piece. Pieces are swizzled: those of eight rows in one column lie in
// different banks.
template <int kColumns> struct Tile {
    static constexpr int kPieces = kColumns / 8;
    static constexpr int kRowBytes = kColumns * 2;
    uint32_t base;

    __device__ __forceinline__ uint32_t at(int row, int piece) const {
        const int other = kPieces >= 8 ? piece ^ (row % 8) : piece ^ (row / 2 % kPieces);
        return base + row * kRowBytes + other * 16;
    }
    // Operand A: rows [m, m + 16) by columns [k, k + 16).
    __device__ __forceinline__ void load_a(uint32_t (&r)[4], int m, int k) const {
        const int lane = threadIdx.x % 32;
        load_matrix(r, at(m + lane % 16, k / 8 + lane / 16));
    }
    // The same of the tile's transpose: columns [m, m + 16) by rows [k, k + 16).
    __device__ __forceinline__ void load_transposed_a(uint32_t (&r)[4], int m, int k) const {
        const int lane = threadIdx.x % 32;
        load_matrix_transposed(r, at(k + lane % 8 + lane / 16 * 8, m / 8 + lane / 8 % 2));
    }
    // Operand B of two products, of the tile's transpose: its columns are the tile's rows [n, n + 16).
    __device__ __forceinline__ void load_transposed_b(uint32_t (&r)[4], int k, int n) const {
        const int lane = threadIdx.x % 32;
        load_matrix(r, at(n + lane % 8 + lane / 16 * 8, k / 8 + lane / 8 % 2));
    }
    // The same of the tile: rows [k, k + 16) by columns [n, n + 16).
    __device__ __forceinline__ void load_b(uint32_t (&r)[4], int k, int n) const {
        const int lane = threadIdx.x % 32;
        load_matrix_transposed(r, at(k + lane % 16, n / 8 + lane / 16));
    }
    // Asynchronously, by kThreads threads: kStateChunk rows, of which those from `count` on are zeros.
    template <int kThreads, typename T> __device__ __forceinline__ void
    copy(int thread, const T *from, int64_t stride, int count) const {
#pragma unroll
        for (int i = 0; i < kStateChunk * kPieces / kThreads; ++i) {
            const int place = i * kThreads + thread;
            const int row = place / kPieces, piece = place % kPieces;
            const bool valid = row < count;
            copy_async(at(row, piece), from + (valid ? row * stride : 0) + piece * 8, valid);
        }
    }
};

// The transpose of a matrix of 8 by 8 elements in mma's accumulator layout.
__device__ __forceinline__ uint32_t transposed(uint32_t pair) {
    uint32_t other;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(other) : "r"(pair));
    return other;
}

// Calls action with a value of the type, of 16 bits.
template <typename Action> cudaError_t with_half(DType type, const Action &action) {
    if (type == DType::bf16) return action(__nv_bfloat16{});
    return type == DType::f16 ? action(__half{}) : cudaErrorInvalidValue;
}

// A chunk of a value head.
struct ChunkPlace {
    StateItem item;
    int64_t token; // the first
    int count;     // tokens
    int first;     // of the item's

    __device__ ChunkPlace(const ChunkArguments &a, const StateChunk &chunk)
        : ChunkPlace(a.delta.items[chunk.item], chunk.first) {}
    __device__ ChunkPlace(const StateItem &item, int first)
        : item(item), token(int64_t{item.token_begin} + first),
          count(min(kStateChunk, item.token_count - first)), first(first) {}
};

template <typename T>
__device__ __forceinline__ T *mixed_of(const ChunkArguments &a, int64_t token) {
    return static_cast<T *>(a.mixed) + token * a.delta.channels();
}

// Of one warp, a lane with the gates (logarithm, rate) of two tokens: G. exp(G) and exp(G_last - G) go to global
// memory.
__device__ __forceinline__ float2 sum_gates(const ChunkArguments &c, const ChunkPlace &place,
                                            int head, const float2 (&gates)[2]) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    float sum = gates[0].x + gates[1].x; // up to the lane's second token
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
        const float before = __shfl_up_sync(~0u, sum, offset);
        if (lane >= offset) sum += before;
    }
    const float sums[2] = {sum - gates[1].x, sum};
    const float last = __shfl_sync(~0u, sum, 31); // beyond the chunk's tokens nothing is added
    float2 *to = c.gates + (place.token + 2 * lane) * c.delta.value_heads + head;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
        if (2 * lane + e >= place.count) continue;
        to[int64_t{e} * c.delta.value_heads] =
            make_float2(exp2_approximate(sums[e]), exp2_approximate(last - sums[e]));
    }
    return make_float2(sums[0], sums[1]);
}

} // namespace batchllm::cuda
