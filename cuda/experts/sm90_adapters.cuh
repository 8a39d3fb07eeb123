// What adapters add to a tile of Hopper's grouped products: stages of their own after the tile's others, which have t of its
// turns where these have x, and where they have W B of as many adapters as fit. A warp that computes adds an adapter's change
// to its sums by mma.sync, whose registers are those of wgmma's results; t of turns that have another adapter is zero there.
#pragma once

#include "adapters/registers.cuh"
#include "adapters/tile.cuh"
#include "experts/sm90.cuh"

namespace batchllm::cuda {
namespace {

// How B lies in a stage: of an adapter one part of all of the tile's rows of W, or gate's half of them and then up's.
struct AdapterStage {
    int32_t apart;    // bytes from an adapter to the next
    int32_t each = 1; // adapters, a power of two

    __device__ explicit AdapterStage(const GroupedAdapters &a)
        : apart(max(a.most_of_part, 8) * kColumns * 2) {
        while (2 * each * apart <= kWBytes) each *= 2;
    }
    __device__ int32_t part(int32_t number, int p) const {
        return number % each * apart + p * (apart / 2);
    }
};

// By the threads that feed. One of 32 adapters a lane of the first warp, in as few registers as possible.
template <bool Gated> struct FeedAdapters {
    static constexpr int kParts = Gated ? 2 : 1;

    const GroupedArguments &a;
    const unsigned char *b = nullptr;
    uint32_t ranks = 0; // of the first part, and 16 bits on of the second
    int32_t units[kParts] = {};

    __device__ explicit FeedAdapters(const GroupedArguments &of) : a(of) {}

    __device__ void load(const TileAdapters *tile, int32_t number) {
        ranks = 0;
        if (number >= __ldg(&tile->count)) return;
        const AdapterEntry *entry = load_entry(tile->entries + number) + a.adapters.product;
        b = reinterpret_cast<const unsigned char *>(
            __ldg(reinterpret_cast<const unsigned long long *>(&entry->b)));
#pragma unroll
        for (int p = 0; p < kParts; ++p) {
            const AdapterPart part = load_part(entry, p);
            ranks |= static_cast<uint32_t>(part.rank) << (16 * p);
            units[p] = part.b_units;
        }
    }
    __device__ int32_t rank(int part) const {
        return static_cast<int32_t>(ranks >> (16 * part) & 0xffff);
    }
    __device__ void begin(const GroupedWork &work, int thread) {
        if (thread < 32) load(a.adapters.tiles + work.tile, thread);
    }
    template <typename Place>
    __device__ __forceinline__ void feed(const GroupedWork &work, int thread, Place *place) {
        const TileAdapters *const tile = a.adapters.tiles + work.tile;
        const AdapterStage layout(a.adapters);
        const int32_t count = __ldg(&tile->count), column = work.column / kParts;
        // B has what fills up the last kPackedRows.
        const int32_t of_part = (a.rows / kParts + kPackedRows - 1) / kPackedRows * kPackedRows;
        const int32_t rows = min(kColumns / kParts, of_part - column);
        const auto t_bytes = static_cast<uint32_t>(work.count * a.adapters.t_stride * 2);
#pragma unroll 1
        for (int32_t i = 0; i < count; i += layout.each) {
            if (i > 0 && i % 32 == 0 && thread < 32) load(tile, i + thread);
            barrier_wait(place->empty(), place->phase ^ 1);
            if (thread < 32) {
                const bool now = thread / layout.each == i % 32 / layout.each;
                uint32_t bytes = 0;
#pragma unroll
                for (int p = 0; p < kParts; ++p) bytes += now ? rows * rank(p) * 2 : 0;
                bytes = __reduce_add_sync(~0u, bytes);
                if (elect_one()) {
                    barrier_expect(place->full(), t_bytes + bytes);
                    bulk_copy(place->stage() + kWBytes,
                              static_cast<const unsigned char *>(a.adapters.t) +
                                  int64_t{work.begin} * a.adapters.t_stride * 2,
                              t_bytes, place->full());
                }
                __syncwarp();
#pragma unroll
                for (int p = 0; p < kParts; ++p) {
                    if (!now || rank(p) == 0) continue;
                    bulk_copy(place->stage() + layout.part(i + thread % layout.each, p),
                              b + int64_t{16} * units[p] + int64_t{column} * rank(p) * 2,
                              static_cast<uint32_t>(rows * rank(p) * 2), place->full());
                }
            }
            copy_async_arrive(place->full());
            place->advance();
        }
    }
};

// By the warps that compute: read ahead of the tile's sums, or, in e4m3, behind them, where registers are free.
template <bool Gated> struct AddAdapters {
    static constexpr int kParts = Gated ? 2 : 1;

    const TileAdapters *tile;
    int32_t product, count;
    uint4 of_turns;                        // of turns lane / 4, and every eighth after it
    int32_t ranks[kParts], firsts[kParts]; // of one of 32 adapters a lane

    __device__ AddAdapters(const GroupedArguments &a, const GroupedWork &work)
        : tile(a.adapters.tiles + work.tile), product(a.adapters.product),
          count(__shfl_sync(~0u, __ldg(&tile->count), 0)),
          of_turns(__ldg(reinterpret_cast<const uint4 *>(tile->of_turn[threadIdx.x % 32 / 4]))) {
        load(0);
    }
    __device__ void load(int32_t begin) {
        const int32_t number = begin + static_cast<int32_t>(threadIdx.x % 32);
#pragma unroll
        for (int p = 0; p < kParts; ++p) {
            AdapterPart part{};
            if (number < count) part = load_part(load_entry(tile->entries + number) + product, p);
            ranks[p] = part.rank;
            firsts[p] = part.first;
        }
    }
    // Whether the i-th of the lane's turns has this adapter.
    __device__ __forceinline__ bool has(int i, int32_t number) const {
        const uint32_t word = i / 4 == 0   ? of_turns.x
                              : i / 4 == 1 ? of_turns.y
                              : i / 4 == 2 ? of_turns.z
                                           : of_turns.w;
        return (word >> (8 * (i % 4)) & 0xff) == static_cast<uint32_t>(number);
    }

    // A part of an adapter, of which a lane has two ranks at a time: of sixteen (packed_b()) its first two, then its last. t: of
    // the tile's first turn and the part's first rank; b: of the tile's first row of the part. eights: which eights of turns
    // have the adapter. One piece of code for all ranks and parts: kernels have it for each number of turns.
    template <typename T, int Turns>
    __device__ __forceinline__ void add(const T *t, int32_t t_stride, const T *b, int32_t rank,
                                        int part, int group, int32_t number, uint32_t eights,
                                        float (&sums)[2][Turns / 2]) const {
        const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32, quarter = lane % 4;
        const int whole = rank / 16 * 16;
        // Of gate or up the rows of W are eight of sixteen.
        const int first = Gated ? group * 64 + warp * 8 : group * 128 + warp * 16;
#pragma unroll 1
        for (int k = 0; k < rank; k += 8) {
            // The lane's first rank of the two.
            const int own =
                k < whole ? k / 16 * 16 + quarter * 4 + k % 16 / 8 * 2 : k + quarter * 2;
            uint32_t w[2][2];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int row =
                        first + half * (Gated ? 32 : 64) + (Gated ? 0 : 8 * i) + lane / 4;
                    const bool is_here = !Gated || i == part;
                    const T *const from = b + packed_b(row, own, rank);
                    w[half][i] = is_here ? *reinterpret_cast<const uint32_t *>(from) : 0;
                }
            }
#pragma unroll
            for (int i = 0; i < Turns / 8; ++i) {
                if ((eights >> i & 1) == 0) continue;
                uint32_t x = 0;
                if (has(i, number)) {
                    x = *reinterpret_cast<const uint32_t *>(t + (8 * i + lane / 4) * t_stride +
                                                            own);
                }
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    mma_sync_8(sums[half] + 4 * i, w[half][0], w[half][1], x, T());
                }
            }
        }
    }

    template <typename T, int Turns, typename Place>
    __device__ __forceinline__ void add_all(const GroupedArguments &a, int group, Place *place,
                                            const unsigned char *shared,
                                            float (&sums)[2][Turns / 2]) {
        const AdapterStage layout(a.adapters);
        const int32_t t_stride = a.adapters.t_stride;
        for (int32_t i = 0; i < count; i += layout.each) {
            if (i > 0 && i % 32 == 0) load(i);
            barrier_wait(place->full(), place->phase);
            const unsigned char *const stage = shared + (place->stage() - place->base);
            for (int32_t number = i; number < min(i + layout.each, count); ++number) {
                uint32_t eights = 0;
#pragma unroll
                for (int e = 0; e < Turns / 8; ++e) {
                    eights |= __any_sync(~0u, has(e, number)) ? 1U << e : 0U;
                }
#pragma unroll 1
                for (int p = 0; p < kParts; ++p) {
                    const int32_t rank =
                        __shfl_sync(~0u, p == 0 ? ranks[0] : ranks[kParts - 1], number % 32);
                    const int32_t first =
                        __shfl_sync(~0u, p == 0 ? firsts[0] : firsts[kParts - 1], number % 32);
                    add<T, Turns>(reinterpret_cast<const T *>(stage + kWBytes) + first, t_stride,
                                  reinterpret_cast<const T *>(stage + layout.part(number, p)), rank,
                                  p, group, number, eights, sums);
                }
            }
            release(place->empty());
            place->advance();
        }
    }
};

} // namespace
} // namespace batchllm::cuda
