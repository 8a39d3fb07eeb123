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

// By the threads that feed. One of 32 adapters a lane of the first warp.
template <bool Gated> struct FeedAdapters {
    static constexpr int kParts = Gated ? 2 : 1;

    const GroupedArguments &a;
    const AdapterStage layout;
    const TileAdapters *tile = nullptr;
    int32_t count = 0;
    const unsigned char *b = nullptr;
    int32_t ranks[kParts] = {}, units[kParts] = {};

    __device__ explicit FeedAdapters(const GroupedArguments &of) : a(of), layout(of.adapters) {}

    __device__ void load(int32_t number) {
#pragma unroll
        for (int p = 0; p < kParts; ++p) ranks[p] = 0;
        if (number >= count) return;
        const AdapterEntry *entry = load_entry(tile->entries + number) + a.adapters.product;
        b = reinterpret_cast<const unsigned char *>(
            __ldg(reinterpret_cast<const unsigned long long *>(&entry->b)));
#pragma unroll
        for (int p = 0; p < kParts; ++p) {
            const AdapterPart part = load_part(entry, p);
            ranks[p] = part.rank;
            units[p] = part.b_units;
        }
    }
    __device__ void begin(const GroupedWork &work, int thread) {
        tile = a.adapters.tiles + work.tile;
        count = __ldg(&tile->count);
        if (thread < 32) load(thread);
    }
    template <typename Place>
    __device__ void feed(const GroupedWork &work, int thread, Place *place) {
        const int32_t column = work.column / kParts;
        // B has what fills up the last kPackedRows.
        const int32_t of_part = (a.rows / kParts + kPackedRows - 1) / kPackedRows * kPackedRows;
        const int32_t rows = min(kColumns / kParts, of_part - column);
        const auto t_bytes = static_cast<uint32_t>(work.count * a.adapters.t_stride * 2);
        for (int32_t i = 0; i < count; i += layout.each) {
            if (i > 0 && i % 32 == 0 && thread < 32) load(i + thread);
            barrier_wait(place->empty(), place->phase ^ 1);
            if (thread < 32) {
                const bool now = thread / layout.each == i % 32 / layout.each;
                uint32_t bytes = 0;
#pragma unroll
                for (int p = 0; p < kParts; ++p) bytes += now ? rows * ranks[p] * 2 : 0;
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
                    if (!now || ranks[p] == 0) continue;
                    bulk_copy(place->stage() + layout.part(i + thread % layout.each, p),
                              b + int64_t{16} * units[p] + int64_t{column} * ranks[p] * 2,
                              static_cast<uint32_t>(rows * ranks[p] * 2), place->full());
                }
            }
            copy_async_arrive(place->full());
            place->advance();
        }
    }
};

// By the warps that compute; read ahead of the tile's sums.
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

    // Sixteen ranks of one part, or eight. t: of the tile's first turn, b: of the tile's first row of the part, both from
    // these ranks on; rank: of the part. eights: which eights of turns have the adapter.
    template <typename T, int Ranks, int Turns> __device__ __forceinline__ void
    add(const unsigned char *t, int32_t t_stride, const unsigned char *b, int32_t rank, int p,
        int group, int32_t number, uint32_t eights, float (&sums)[2][Turns / 2]) const {
        using Unit = std::conditional_t<Ranks == 16, uint2, uint32_t>; // a lane's ranks of a row
        const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32, quarter = lane % 4;
        uint32_t w[2][4] = {};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int i = 0; i < (Gated ? 1 : 2); ++i) {
                const int row = Gated ? group * 64 + half * 32 + warp * 8 + lane / 4
                                      : group * 128 + half * 64 + warp * 16 + i * 8 + lane / 4;
                const int in_group = row % kPackedRows;
                const int n = in_group / 8 * 2 + in_group % 2, j = in_group % 8 / 2;
                const int unit = (n * 4 + quarter) * 8;
                const int at = row / kPackedRows * kPackedRows * rank +
                               (Ranks == 16 ? j / 2 * 256 + unit + j % 2 * 4 : unit + j * 2);
                const Unit x = *reinterpret_cast<const Unit *>(b + at * 2);
                const int to = Gated ? p : i; // gate's rows are the first eight of sixteen
                if constexpr (Ranks == 16) {
                    w[half][to] = x.x;
                    w[half][to + 2] = x.y;
                } else {
                    w[half][to] = x;
                }
            }
        }
#pragma unroll
        for (int i = 0; i < Turns / 8; ++i) {
            if ((eights >> i & 1) == 0) continue;
            Unit x{};
            if (has(i, number)) {
                x = *reinterpret_cast<const Unit *>(
                    t + ((8 * i + lane / 4) * t_stride + quarter * (Ranks / 4)) * 2);
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                if constexpr (Ranks == 16) {
                    mma_sync(sums[half] + 4 * i, w[half], x.x, x.y, T());
                } else {
                    mma_sync_8(sums[half] + 4 * i, w[half][0], w[half][1], x, T());
                }
            }
        }
    }

    template <typename T, int Turns, typename Place>
    __device__ void add_all(const GroupedArguments &a, int group, Place *place,
                            const unsigned char *shared, float (&sums)[2][Turns / 2]) {
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
#pragma unroll
                for (int p = 0; p < kParts; ++p) {
                    const int32_t rank = __shfl_sync(~0u, ranks[p], number % 32);
                    const int32_t first = __shfl_sync(~0u, firsts[p], number % 32);
                    const unsigned char *t = stage + kWBytes + first * 2;
                    const unsigned char *b = stage + layout.part(number, p);
                    int32_t k = 0;
                    for (; k + 16 <= rank; k += 16) {
                        add<T, 16, Turns>(t + k * 2, t_stride, b + k * kPackedRows * 2, rank, p,
                                          group, number, eights, sums);
                    }
                    if (k < rank) {
                        add<T, 8, Turns>(t + k * 2, t_stride, b + k * kPackedRows * 2, rank, p,
                                         group, number, eights, sums);
                    }
                }
            }
            release(place->empty());
            place->advance();
        }
    }
};

} // namespace
} // namespace batchllm::cuda
