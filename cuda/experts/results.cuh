// How results of the products for Hopper leave: activated, rounded, and through shared memory, so that they are written a
// row at a time.
#pragma once

#include "attention/hopper.cuh"
#include "experts/work.cuh"

namespace batchllm::cuda {
namespace {

// Of the results; the first three are not gated. added: to what is there, or f32, or both (four_bits alone).
enum class Epilogue { plain, added, relu_squared, silu, gelu, gelu_tanh, clamped_swiglu };
constexpr bool is_gated(Epilogue of) { return of >= Epilogue::silu; }
constexpr Activation activation_of(Epilogue of) {
    return of == Epilogue::silu        ? Activation::silu
           : of == Epilogue::gelu      ? Activation::gelu
           : of == Epilogue::gelu_tanh ? Activation::gelu_tanh
                                       : Activation::clamped_swiglu;
}

// Where a warpgroup's results go: y [., rows of W], or gated [., rows / 2]; thread: its number in the warpgroup, group: the
// warpgroup's.
struct ResultPlace {
    void *y;
    int rows, group, thread;
};

// Turns [OutTurns Chunk, OutTurns Chunk + OutTurns) of the warpgroup's rows of W, of whose sums a thread has, for
// each 64 of them, of rows lane / 4 and lane / 4 + 8 of its warp's sixteen, for each eight turns, two turns beside each
// other. out: its own room, a row a turn.
template <typename T, Epilogue F, int OutTurns, int Turns, int Chunk>
__device__ __forceinline__ void store_chunk(const ResultPlace &place, const GroupedWork &work,
                                            const float (&sums)[2][Turns / 2], unsigned char *out) {
    constexpr bool gated = is_gated(F), squared = F == Epilogue::relu_squared;
    constexpr int columns = gated ? 64 : 128, stride = columns * 2 + 16;
    constexpr int eights = OutTurns / 8, first = eights * Chunk;
    constexpr int last = first + eights < Turns / 8 ? first + eights : Turns / 8;
    const int thread = place.thread, warp = thread / 32, lane = thread % 32, group = place.group;
    named_barrier(1 + group, 128); // what was there has been read
    // Matrices of 8 columns x 8 turns, stored a turn after the other.
#pragma unroll
    for (int b = 0; b < 2; ++b) {
        const uint32_t to = shared_address(out) + lane % 8 * stride;
        if constexpr (gated) { // of two eights of turns
            const uint32_t at = to + lane / 8 % 2 * 8 * stride + (b * 32 + warp * 8) * 2;
#pragma unroll
            for (int j = first; j < last; j += 2) {
                uint32_t r[2];
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const float *d = sums[b] + 4 * (j + i);
                    r[i] = pack(quickly_gated<activation_of(F)>(d[0], d[2]),
                                quickly_gated<activation_of(F)>(d[1], d[3]), T());
                }
                store_matrix_transposed(at + (j - first) * 8 * stride, r);
            }
        } else { // of both eights of columns, and two of turns
            const uint32_t at =
                to + lane / 16 * 8 * stride + (b * 64 + warp * 16 + lane / 8 % 2 * 8) * 2;
#pragma unroll
            for (int j = first; j < last; j += 2) {
                const float *d = sums[b] + 4 * j;
                uint32_t r[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    r[i] = pack(ungated<squared>(d[2 * i]), ungated<squared>(d[2 * i + 1]), T());
                }
                store_matrix_transposed(at + (j - first) * 8 * stride, r);
            }
        }
    }
    named_barrier(1 + group, 128);
    constexpr int across = columns / 8; // threads of a turn
    const int width = gated ? place.rows / 2 : place.rows;
    const int column =
        (gated ? work.column / 2 : work.column) + group * columns + thread % across * 8;
    T *y = static_cast<T *>(place.y) + int64_t{work.begin} * width + column;
#pragma unroll
    for (int i = 0; i < OutTurns * across / 128; ++i) {
        const int turn = thread / across + i * (128 / across);
        if (column < width && OutTurns * Chunk + turn < work.count) {
            *reinterpret_cast<uint4 *>(y + int64_t{OutTurns * Chunk + turn} * width) =
                *reinterpret_cast<const uint4 *>(out + turn * stride + thread % across * 16);
        }
    }
}

} // namespace
} // namespace batchllm::cuda
