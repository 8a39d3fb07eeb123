// What the grouped products for Hopper share, whatever their elements are: the ring of stages, the warpgroup that
// feeds it, and how results leave through shared memory.
//
// A tile is 256 rows of W x up to 128 turns, a stage 128 bytes of each of these rows. One warpgroup feeds: x by
// cp.async, a row of 128 bytes by eight threads, wherever row_of says that it is; W by one bulk copy, as it lies in
// its panel. Two compute, 128 rows of W each, gate and up of the same in the same threads.
#pragma once

#include <type_traits>

#include "attention/hopper.cuh"
#include "device/copies.cuh"
#include "device/launch.cuh"
#include "device/stage_ring.cuh"
#include "experts/results.cuh"
#include "experts/work.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kColumns = 256, kStages = 4, kStep = kTurnStep; // rows of W a tile; turns by so many
constexpr int kConsumers = 256, kThreads = kConsumers + 128;
constexpr int kXBytes = kTileRows * 128, kWBytes = kColumns * 128, kStage = kXBytes + kWBytes;
constexpr int kOut = kStages * kStage; // results on their way out, after the stages
constexpr int kMostShared = 232448;
using Queue = GroupedQueue<kColumns, kStep>;

// Barriers: where they are.
template <int Barriers> using RingPlace = StageRing<kStages, kStage, Barriers>;

// By one thread, before the others use them.
template <int Barriers> __device__ __forceinline__ void init_barriers(RingPlace<Barriers> each) {
    for (int i = 0; i < kStages; ++i) {
        barrier_init(each.full(), 128 + 1); // the feeders, and the one that expects W
        barrier_init(each.empty(), kConsumers / 32);
        each.advance();
    }
}

// Calls act with each tile of this CTA; the next one's description is on its way meanwhile.
template <typename Queue, typename Act>
__device__ __forceinline__ void for_each_tile(const Queue &queue, const Act &act) {
    int4 tile = queue.load(blockIdx.x);
    for (int number = blockIdx.x; number < queue.total; number += gridDim.x) {
        const GroupedWork work = queue.at(number, tile);
        tile = queue.load(number + gridDim.x);
        act(work);
    }
}

// Calls act with the tile's turns, rounded up, as a constant.
template <int Turns = kStep, typename Act>
__device__ __forceinline__ void with_turns(int count, const Act &act) {
    if constexpr (Turns < kTileRows) {
        if (count > Turns) return with_turns<Turns + kStep>(count, act);
    }
    act(std::integral_constant<int, Turns>());
}
template <typename Act>
__device__ __forceinline__ void with_turns(const GroupedWork &work, const Act &act) {
    with_turns(__shfl_sync(~0u, work.count, 0), act);
}

// W in panels: what a stage has of a tile's rows.
struct PanelsOfW {
    const std::byte *from;
    int64_t step; // bytes
    uint32_t bytes;

    __device__ explicit PanelsOfW(const GroupedArguments &a)
        : from(nullptr), step(int64_t{a.rows} * 128), bytes(0) {}
    __device__ void begin(const GroupedArguments &a, const GroupedWork &work, int steps) {
        from = static_cast<const std::byte *>(a.w) +
               (int64_t{work.expert} * steps * a.rows + work.column) * 128;
        bytes = min(kColumns, a.rows - work.column) * 128;
    }
    // By one thread.
    __device__ void load(const GroupedArguments &, int s, uint32_t stage, uint32_t full) const {
        barrier_expect(full, bytes);
        bulk_copy(stage, from + s * step, bytes, full);
    }
};

// scales: what comes with a stage besides.
struct NoScales {
    __device__ void begin(const GroupedWork &, int) {}
    __device__ void load(int, int) const {}
};
// adapters: stages that come after a tile's others.
struct NoAdapters {
    __device__ void begin(const GroupedWork &, int) {}
    template <typename Place> __device__ void feed(const GroupedWork &, int, Place *) {}
};
template <int ElementBytes, typename Queue, typename Place, typename FeedW, typename Scales,
          typename Adapters = NoAdapters>
__device__ void feed(const GroupedArguments &a, const Queue &queue, Place place, FeedW w,
                     Scales scales, Adapters adapters = Adapters()) {
    constexpr int kAcross = 128 / ElementBytes, kChunk = 16 / ElementBytes; // elements
    const int thread = static_cast<int>(threadIdx.x) - kConsumers;
    const int chunk = thread % 8, row = thread / 8; // and every 16th row after it
    const int steps = (a.columns + kAcross - 1) / kAcross;
    const uint32_t to = row * 128 + (chunk ^ row % 8) * 16;
    for_each_tile(queue, [&](const GroupedWork &work) {
        scales.begin(work, thread);
        w.begin(a, work, steps);
        adapters.begin(work, thread);
        with_turns(work, [&](auto turns) {
            constexpr int kEach = decltype(turns)::value / kStep;
            uint32_t from[kEach]; // in chunks
#pragma unroll
            for (int i = 0; i < kEach; ++i) { // where there are no more turns, the last one again
                const int turn = work.begin + min(row + kStep * i, work.count - 1);
                const uint32_t source = a.row_of != nullptr ? __ldg(a.row_of + turn) : turn;
                from[i] = source * static_cast<uint32_t>(a.columns / kChunk) + chunk;
            }
            const auto *x = static_cast<const uint4 *>(a.x);
#pragma unroll 1
            for (int s = 0; s < steps; ++s, x += 8) {
                barrier_wait(place.empty(), place.phase ^ 1);
                const uint32_t stage = place.stage();
                if (thread < 32 && elect_one()) w.load(a, s, stage, place.full());
                const bool inside = s * kAcross + chunk * kChunk < a.columns;
#pragma unroll
                for (int i = 0; i < kEach; ++i) {
                    copy_async(stage + kWBytes + to + i * kStep * 128, x + from[i], inside);
                }
                scales.load(s, place.slot);
                copy_async_arrive(place.full());
                place.advance();
            }
        });
        adapters.feed(work, thread, &place);
    });
    copy_async_wait<0>();
}

// A warp is done with the stage.
__device__ __forceinline__ void release(uint32_t barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
}

// To all turns. sums[b]: of 64 of the warpgroup's rows of W, as wgmma leaves them.
template <int Turns> __device__ __forceinline__ void add_bias(const GroupedArguments &a,
                                                              const GroupedWork &work, int group,
                                                              float (&sums)[2][Turns / 2]) {
    const float *bias = a.bias + int64_t{work.expert} * a.rows;
    const int thread = threadIdx.x % 128;
#pragma unroll
    for (int b = 0; b < 2; ++b) {
        const int row = work.column + group * 128 + b * 64 + thread / 32 * 16 + thread % 32 / 4;
        const float low = row < a.rows ? __ldg(bias + row) : 0.0f;
        const float high = row + 8 < a.rows ? __ldg(bias + row + 8) : 0.0f;
#pragma unroll
        for (int i = 0; i < Turns / 2; ++i) sums[b][i] += i % 4 < 2 ? low : high;
    }
}

// Bytes of the room for so many of a warpgroup's turns, the stride clear of bank conflicts.
constexpr int out_bytes(int turns) { return turns * (128 * 2 + 16); }

// All of a tile's turns, OutTurns at a time.
template <typename T, Epilogue F, int OutTurns, int Turns, int Chunk = 0>
__device__ __forceinline__ void store_all(const GroupedArguments &a, const GroupedWork &work,
                                          int group, const float (&sums)[2][Turns / 2],
                                          unsigned char *out) {
    const ResultPlace place{a.y, a.rows, group, static_cast<int>(threadIdx.x % 128)};
    store_chunk<T, F, OutTurns, Turns, Chunk>(place, work, sums, out);
    if constexpr (OutTurns * (Chunk + 1) < Turns) {
        store_all<T, F, OutTurns, Turns, Chunk + 1>(a, work, group, sums, out);
    }
}

template <typename Kernel> cudaError_t
launch_tiles(Kernel kernel, int shared, const GroupedArguments &a, int sms, cudaStream_t stream) {
    return launch_with_shared(kernel, static_cast<unsigned>(sms), kThreads, shared, stream, a);
}

} // namespace
} // namespace batchllm::cuda
