// What goes from chunk to chunk (chunk.h) on Hopper: by wgmma, S^T and N^T its left operands from registers
// (across.cuh). One warpgroup computes, the other feeds: operands lie in a ring of tiles of 16 KB, copied as far ahead
// as there is room, across items too.
//
// Of an item come, in this order, S (where it has one before it) and of each chunk W, q, U with P, and k. S^T q^T is in
// flight while N is made, and a chunk's results leave during the next one's first product.
#include <type_traits>

#include "attention/hopper.cuh"
#include "device/wgmma_registers.cuh"
#include "recurrent/across.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kConsumers = 128, kThreads = kConsumers + 128;
constexpr int kTiles = 13;
constexpr int kTileBytes = kDeltaChunk * kHeadDim * 2;
constexpr int kHalfBytes =
    kTileBytes / 2; // rows of 128 bytes, swizzled as wgmma wants them; also U, and P after it

struct AcrossRing {
    alignas(1024) unsigned char tiles[kTiles][kTileBytes];
    alignas(16) float2 decays[kTiles][kDeltaChunk]; // exp(G), exp(G_last - G), with U and P
    uint64_t full[kTiles], empty[kTiles];
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

// The barrier gets an arrival of this thread, which init counted, once its copies so far have come.
__device__ __forceinline__ void copy_async_arrive(uint32_t barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void copy_async_pair(uint32_t destination, const float2 *source) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(destination), "l"(source)
                 : "memory");
}

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
    const int thread = static_cast<int>(threadIdx.x) - kConsumers;
    for (int i = static_cast<int>(blockIdx.x); i < places.count; i += static_cast<int>(gridDim.x)) {
        const AcrossPlace place = places.at(i);
        if (place.item.from >= 0) feed_state<S>(c.delta, place, thread, &ring);
        for (int first = 0; first < place.item.token_count; first += kDeltaChunk) {
            feed_chunk<T>(c, place, first, thread, &ring);
        }
    }
    copy_async_wait<0>();
}

// ---- Computing ----

template <typename S>
__device__ __forceinline__ void read_state(RingPlace *ring, StateSums &state) {
    using Tile = StateTile<S>;
    RingPlace now = *ring;
    visit_state([&](int i, int row, int column) {
        if (i % (Tile::kRows / 2) == 0) {
            now = ring->take();
            barrier_wait(now.full(), now.phase);
        }
        constexpr int kEach = 16 / sizeof(S);
        const unsigned char *from = now.ring->tiles[now.slot] +
                                    Tile::at(row % Tile::kRows, column / kEach) +
                                    column % kEach * sizeof(S);
        state[i] = to_float(*reinterpret_cast<const S *>(from));
        if ((i + 1) % (Tile::kRows / 2) == 0) now.release();
    });
}

// sums = S^T times the tile's transpose
template <typename T> __device__ __forceinline__ void
multiply_by_state(const uint32_t (&state)[kHeadDim / 4], uint32_t tile, TokenSums &sums) {
    const Operand rows(tile);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
        wgmma_rs(sums, state + 4 * k, rows.at(k / 4 * kHalfBytes + k % 4 * 32), k > 0,
                 std::integral_constant<int, kDeltaChunk>(), T());
    }
    wgmma_commit();
}

// found += N^T P^T
template <typename T> __device__ __forceinline__ void
add_within(const uint32_t (&changes)[kDeltaChunk / 4], uint32_t tile, TokenSums &found) {
    const Operand p(tile);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kDeltaChunk / 16; ++k) {
        wgmma_rs(found, changes + 4 * k, p.at(k * 32), 1,
                 std::integral_constant<int, kDeltaChunk>(), T());
    }
    wgmma_commit();
}

// S^T += changes k
template <typename T> __device__ __forceinline__ void
advance_state(const uint32_t (&changes)[kDeltaChunk / 4], uint32_t tile, StateSums &state) {
    const Operand keys(tile, kHalfBytes);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kDeltaChunk / 16; ++k) {
        wgmma_rs(state, changes + 4 * k, keys.at(k * 16 * 128), T());
    }
    wgmma_commit();
}

template <typename T, int kSums>
__device__ __forceinline__ void as_operands(const float (&sums)[kSums], uint32_t (&a)[kSums / 2]) {
#pragma unroll
    for (int k = 0; k < kSums / 8; ++k) as_operand<T>(a + 4 * k, sums + 8 * k, sums + 8 * k + 4);
}

template <typename T> __device__ __forceinline__ void
step_through(const ChunkArguments &c, const AcrossPlace &place, RingPlace *ring, StateSums &state) {
    TokenSums known, found;
    uint32_t left[kHeadDim / 4], changes[kDeltaChunk / 4], later[kDeltaChunk / 4];
    const int tokens = __shfl_sync(~0u, place.item.token_count, 0); // known to be the same
    RingPlace within = *ring; // U and P of the chunk before, whose results are under way
    const auto finish = [&](int first) {
        within.release();
        store_results(found, results_of<T>(c, place, first), c.delta.values_size(), tokens - first);
    };
    for (int first = 0; first < tokens; first += kDeltaChunk) {
        const RingPlace w = ring->take(), queries = ring->take();
        as_operands<T>(state, left);
        w.wait_full();
        multiply_by_state<T>(left, w.tile(), known);
        wgmma_wait<1>(); // for ptxas, which would serialise them all for what follows
        if (first > 0) finish(first - kDeltaChunk); // meanwhile
        queries.wait_full();
        multiply_by_state<T>(left, queries.tile(), found);
        within = ring->take();
        within.wait_full();
        const float2 *decays = within.decays();
        decay_state(decays, state);
        wgmma_wait<1>(); // known
        w.release();
        subtract_from<T>(Columns{within.tile()}, known);
        as_operands<T>(known, changes);
        decay_tokens<true>(decays, known);
        as_operands<T>(known, later);
        const RingPlace keys = ring->take();
        keys.wait_full();
        advance_state<T>(later, keys.tile(), state);
        wgmma_wait<1>(); // found
        queries.release();
        decay_tokens<false>(decays, found);
        add_within<T>(changes, within.tile() + kHalfBytes, found);
        wgmma_wait<0>(); // what is in flight from pass to pass ptxas serialises
        keys.release();
    }
    finish((tokens - 1) / kDeltaChunk * kDeltaChunk);
}

template <typename T, typename S>
__device__ void compute(const ChunkArguments &c, const AcrossPlaces &places, RingPlace ring) {
    for (int i = static_cast<int>(blockIdx.x); i < places.count; i += static_cast<int>(gridDim.x)) {
        const AcrossPlace place = places.at(i);
        StateSums state = {};
        if (place.item.from >= 0) read_state<S>(&ring, state);
        step_through<T>(c, place, &ring, state);
        store_state<S>(c.delta, place, state);
    }
}

template <typename T, typename S> __global__ void __launch_bounds__(kThreads, 1)
    across_chunks(const __grid_constant__ ChunkArguments c) {
    extern __shared__ __align__(1024) unsigned char memory[];
    auto *ring = reinterpret_cast<AcrossRing *>(memory);
    if (threadIdx.x == 0) {
        for (int i = 0; i < kTiles; ++i) {
            barrier_init(shared_address(&ring->full[i]), 128);
            barrier_init(shared_address(&ring->empty[i]), kConsumers / 32);
        }
        barrier_init_fence();
    }
    __syncthreads();
    const AcrossPlaces places(c.delta);
    if (threadIdx.x >= kConsumers) {
        feed<T, S>(c, places, RingPlace(ring));
    } else {
        compute<T, S>(c, places, RingPlace(ring));
    }
}

template <typename T, typename S> cudaError_t launch(const ChunkArguments &a, cudaStream_t stream) {
    const auto kernel = across_chunks<T, S>;
    constexpr auto bytes = static_cast<int>(sizeof(AcrossRing));
    const cudaError_t set =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (set != cudaSuccess) return set;
    // An item has at least one chunk.
    const int64_t most = int64_t{a.most_chunks} * a.delta.value_heads * AcrossPlaces::kBlocks;
    const auto blocks = static_cast<unsigned>(std::min<int64_t>(most, a.delta.sms));
    kernel<<<blocks, kThreads, bytes, stream>>>(a);
    return cudaGetLastError();
}

} // namespace

cudaError_t launch_across_sm90(const ChunkArguments &a, cudaStream_t stream) {
    return with_half(a.delta.element, [&](auto t) {
        return with_state(a.delta.state,
                          [&](auto s) { return launch<decltype(t), decltype(s)>(a, stream); });
    });
}

} // namespace batchllm::cuda
