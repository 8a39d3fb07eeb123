// What feeds the kernel that goes from chunk to chunk on Hopper (across_sm90.cu): the ring of tiles of 16 KB in which
// operands lie, copied as far ahead as there is room, across items too. Of an item come, in this order, S (where it
// has one before it) and of each chunk W, q, U with P, and k.
#pragma once

#include "attention/hopper.cuh"
#include "device/copies.cuh"
#include "recurrent/across.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kTiles = 12;
constexpr int kTileBytes = kDeltaChunk * kHeadDim * 2;
constexpr int kHalfBytes =
    kTileBytes / 2; // rows of 128 bytes, swizzled as wgmma wants them; also U, and P after it

struct AcrossRing {
    alignas(1024) unsigned char tiles[kTiles][kTileBytes];
    alignas(16) float2 decays[kTiles][kDeltaChunk]; // exp(G), exp(G_last - G), with U and P
    uint64_t full[kTiles], empty[kTiles];

    __device__ __forceinline__ void init(int feeders, int consuming_warps) {
        for (int i = 0; i < kTiles; ++i) {
            barrier_init(shared_address(&full[i]), feeders);
            barrier_init(shared_address(&empty[i]), consuming_warps);
        }
    }
};

// Place in the ring; both sides step through the same sequence.
struct RingPlace {
    AcrossRing *ring;
    int slot = 0;
    uint32_t phase = 0;

    __device__ explicit RingPlace(AcrossRing *of) : ring(of) {}
    __device__ uint32_t tile() const { return shared_address(ring->tiles[slot]); }
    __device__ float2 *decays() const { return ring->decays[slot]; }
    __device__ uint32_t full() const { return shared_address(&ring->full[slot]); }
    __device__ uint32_t empty() const { return shared_address(&ring->empty[slot]); }
    __device__ __forceinline__ RingPlace take() { // this one; the next comes after it
        const RingPlace now = *this;
        if (++slot == kTiles) {
            slot = 0;
            phase ^= 1;
        }
        return now;
    }
    // Copied; what cp.async wrote is then seen by wgmma too.
    __device__ __forceinline__ void wait_full() const {
        barrier_wait(full(), phase);
        async_proxy_fence();
    }
    __device__ __forceinline__ void wait_empty() const { barrier_wait(empty(), phase ^ 1); }
    // A warp is done with it.
    __device__ __forceinline__ void release() const {
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(empty());
    }
};

// 64 columns of S as they lie in tiles: rows of 256 or 128 bytes. Pieces of 16 bytes change places so that rows 0, 2,
// 4 and 6 of eight columns lie in different banks.
template <typename S> struct StateTile {
    static constexpr int kRowBytes = kAcrossColumns * sizeof(S), kPieces = kRowBytes / 16;
    static constexpr int kRows = kTileBytes / kRowBytes;
    static __device__ __forceinline__ int at(int row, int piece) {
        return row * kRowBytes + (piece ^ (sizeof(S) == 4 ? row / 2 % 4 * 2 : row % 8)) * 16;
    }
};

// ---- Feeding ----

// kDeltaChunk rows of kColumns elements, those from `count` on zeros, in halves of 64 columns. `triangle`: beyond the
// row's 16 columns on the diagonal zeros too.
template <int kColumns, bool triangle = false, typename T> __device__ __forceinline__ void
copy_rows(int thread, uint32_t to, const T *from, int64_t stride, int count) {
    constexpr int kPieces = kColumns / 8, kRows = 128 / kPieces; // at a time: a multiple of 8
    const int first = thread / kPieces, piece = thread % kPieces;
    to += piece / 8 * kHalfBytes + first * 128 + (piece % 8 ^ first % 8) * 16;
    from += first * stride + piece * 8;
#pragma unroll
    for (int i = 0; i < kDeltaChunk / kRows; ++i) {
        const int row = first + i * kRows;
        const bool valid = row < count && (!triangle || piece / 2 <= row / 16);
        copy_async(to + i * kRows * 128, valid ? from + i * kRows * stride : from, valid);
    }
}

template <typename S> __device__ __forceinline__ void
feed_state(const DeltaArguments &a, const AcrossPlace &place, int thread, RingPlace *ring) {
    using Tile = StateTile<S>;
    constexpr int kRows = 128 / Tile::kPieces; // at a time: a multiple of 8
    const int row = thread / Tile::kPieces, piece = thread % Tile::kPieces;
    const S *from = state_of<S>(a, place.item.from, place.head) + row * kHeadDim + place.column +
                    piece * (16 / sizeof(S));
    for (int first = 0; first < kHeadDim; first += Tile::kRows) {
        const RingPlace now = ring->take();
        now.wait_empty();
#pragma unroll
        for (int i = 0; i < Tile::kRows; i += kRows) {
            copy_async(now.tile() + Tile::at(row, piece) + i * Tile::kRowBytes,
                       from + (first + i) * kHeadDim, true);
        }
        copy_async_arrive(now.full());
    }
}

template <typename T>
__device__ __forceinline__ void feed_chunk(const ChunkArguments &c, const AcrossPlace &place,
                                           int first, int thread, RingPlace *ring) {
    const DeltaArguments &a = c.delta;
    const int count = min(kDeltaChunk, place.item.token_count - first);
    const int64_t token = int64_t{place.item.token_begin} + first;
    const int64_t of_token = token * a.value_heads + place.head; // of arrays by heads
    const int key_head = place.head / (a.value_heads / a.key_heads);
    const T *mixed = mixed_of<T>(c, token);
    const auto copy_tile = [&](const T *from, int64_t stride) {
        const RingPlace now = ring->take();
        now.wait_empty();
        copy_rows<kHeadDim>(thread, now.tile(), from, stride, count);
        copy_async_arrive(now.full());
    };
    copy_tile(static_cast<const T *>(c.w) + of_token * kHeadDim, int64_t{a.value_heads} * kHeadDim);
    copy_tile(mixed + key_head * kHeadDim, a.channels());
    const RingPlace now = ring->take();
    now.wait_empty();
    copy_rows<kAcrossColumns>(thread, now.tile(),
                              mixed + 2 * a.keys_size() + place.head * kHeadDim + place.column,
                              a.channels(), count);
    copy_rows<kDeltaChunk, true>(thread, now.tile() + kHalfBytes,
                                 static_cast<const T *>(c.p) + of_token * kDeltaChunk,
                                 int64_t{a.value_heads} * kDeltaChunk, count);
    if (thread < kDeltaChunk) { // beyond the chunk's tokens the last one's
        copy_async_pair(shared_address(now.decays() + thread),
                        c.gates + of_token + int64_t{min(thread, count - 1)} * a.value_heads);
    }
    copy_async_arrive(now.full());
    copy_tile(mixed + a.keys_size() + key_head * kHeadDim, a.channels());
}

template <typename T, typename S>
__device__ void feed(const ChunkArguments &c, const AcrossPlaces &places, RingPlace ring) {
    const int thread = static_cast<int>(threadIdx.x) % 128;
    for (int i = static_cast<int>(blockIdx.x); i < places.count; i += static_cast<int>(gridDim.x)) {
        const AcrossPlace place = places.at(i);
        if (place.item.from >= 0) feed_state<S>(c.delta, place, thread, &ring);
        for (int first = 0; first < place.item.token_count; first += kDeltaChunk) {
            feed_chunk<T>(c, place, first, thread, &ring);
        }
    }
    copy_async_wait<0>();
}

} // namespace
} // namespace batchllm::cuda
