// What feeds the kernel that goes from chunk to chunk on Hopper (across_sm90.cu): shared memory and its barriers, and
// the two warps that copy by TMA, one for the warpgroup that has the states, one for those that make the results. What
// both CTAs of a cluster need is loaded once: each loads half of the rows, to both.
#pragma once

#include "attention/hopper.cuh"
#include "device/cluster.cuh"
#include "device/copies.cuh"
#include "device/tma.cuh"
#include "recurrent/across.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kWarps = 4;                    // of a warpgroup
constexpr int kCtas = AcrossPlaces::kBlocks; // of a cluster
constexpr int kPanelBytes =
    kStateChunk * 128; // 64 columns, swizzled as TMA writes and wgmma wants them
constexpr int kTileBytes = 2 * kPanelBytes;
constexpr int kTiles = 6, kValues = 2; // under way
constexpr int kGroups = 2;             // warpgroups that make results, every second chunk each
constexpr int kBoxRows = kStateChunk / kCtas, kBoxBytes = kBoxRows * 128;

// Of a part of shared memory that is filled and used by turns. phase: 0 for the first turn, 1 for the second, and on.
struct Turns {
    uint64_t full, empty;

    __device__ __forceinline__ void init(int fillers, int users) {
        barrier_init(shared_address(&full), static_cast<uint32_t>(fillers));
        barrier_init(shared_address(&empty), static_cast<uint32_t>(users));
    }
    __device__ __forceinline__ uint32_t filled() const { return shared_address(&full); }
    __device__ __forceinline__ void wait_full(uint32_t phase) const {
        barrier_wait(filled(), phase);
    }
    __device__ __forceinline__ void wait_empty(uint32_t phase) const {
        barrier_wait(shared_address(&empty), phase ^ 1);
    }
    // A warp has filled its part, and fenced what it stored for wgmma.
    __device__ __forceinline__ void publish() const {
        __syncwarp();
        if (elect_one()) barrier_arrive(filled());
    }
    // A warp is done with it.
    __device__ __forceinline__ void release() const {
        __syncwarp();
        if (elect_one()) barrier_arrive(shared_address(&empty));
    }
    // The same where both CTAs load.
    __device__ __forceinline__ void release_to_both() const {
        __syncwarp();
        const uint32_t lane = threadIdx.x % 32;
        if (lane < kCtas) barrier_arrive_at(shared_address(&empty), lane);
    }
};

// Which of kSlots is next, and in which phase it is.
template <int kSlots> struct Next {
    int slot = 0;
    uint32_t phase = 0;

    __device__ __forceinline__ Next take() { // this one; the next comes after it
        const Next now = *this;
        if (++slot == kSlots) {
            slot = 0;
            phase ^= 1;
        }
        return now;
    }
};

// Keeps what makes the sums before this and what reads them after it: the compiler would move them past waits.
template <int kSums> __device__ __forceinline__ void pin(float (&sums)[kSums]) {
#pragma unroll
    for (float &x : sums) asm volatile("" : "+f"(x));
}
// All products are done.
template <int kSums> __device__ __forceinline__ void wait_for(float (&sums)[kSums]) {
    wgmma_wait<0>();
    pin(sums);
}

// Of a chunk, what its results are made of.
struct ResultTiles {
    alignas(1024) unsigned char queries[kTileBytes];
    alignas(1024) unsigned char state[kTileBytes]; // S^T before it
    alignas(1024) unsigned char p[kPanelBytes];
    alignas(1024) unsigned char changes[kPanelBytes]; // N^T
    alignas(1024) unsigned char gates[kPanelBytes];   // then the results
};
struct ResultTurns {
    Turns queries, state, p, changes, gates;
    // The other CTA's sums, of two turns: it may be one ahead.
    uint64_t squares_full[2];
    float squares[2][kStateChunk];
};

struct AcrossShared {
    alignas(1024) unsigned char tiles[kTiles][kTileBytes];    // S; W; k
    alignas(1024) unsigned char values[kValues][kPanelBytes]; // U
    ResultTiles results[kGroups];
    alignas(16) float2 decays[kValues][kStateChunk]; // exp(G), exp(G_last - G), with U
    Turns tile_turns[kTiles], value_turns[kValues];
    ResultTurns result_turns[kGroups];

    __device__ __forceinline__ void init() {
        for (Turns &t : tile_turns) t.init(1, kCtas * kWarps);
        for (Turns &t : value_turns) t.init(1 + 32, kWarps);
        for (ResultTurns &r : result_turns) {
            r.queries.init(1, kCtas * kWarps);
            r.p.init(1, kCtas * kWarps);
            r.gates.init(1, kWarps);
            r.state.init(kWarps, kWarps);
            r.changes.init(kWarps, kWarps);
            for (uint64_t &full : r.squares_full) barrier_init(shared_address(&full), 1);
        }
    }
};
static_assert(sizeof(AcrossShared) <= 232448);

struct AcrossMaps {
    CUtensorMap mixed, w, p, projected; // boxes of kBoxRows tokens
    CUtensorMap states;                 // of a slot all heads' rows, one after the other
};

// 64 columns of S as they lie in tiles: columns of 128 bytes each, all rows.
template <typename S> struct StateTiles {
    static constexpr int kCount = sizeof(S) / 2, kColumns = kAcrossColumns / kCount;
};

// A chunk of a head.
struct AcrossChunk {
    int head, column, key_head;
    int64_t token; // the first
    int count;

    __device__ __forceinline__ AcrossChunk(const DeltaArguments &a, const AcrossPlace &place,
                                           int first)
        : head(place.head), column(place.column),
          key_head(place.head / (a.value_heads / a.key_heads)),
          token(int64_t{place.item.token_begin} + first),
          count(min(kStateChunk, place.item.token_count - first)) {}
    // Of tokens; a box of which none is there is not loaded.
    __device__ __forceinline__ int boxes() const { return (count + kBoxRows - 1) / kBoxRows; }
};

// kPanels times 64 columns, to both CTAs. By one thread, as the next one.
template <int kPanels>
__device__ __forceinline__ void load_to_both(const CUtensorMap &map, int column,
                                             const AcrossChunk &chunk, const void *to,
                                             const Turns &turns) {
    const int row = static_cast<int>(cluster_rank()) * kBoxRows;
    barrier_expect(turns.filled(), static_cast<uint32_t>(kPanels * kBoxBytes * chunk.boxes()));
    if (row >= chunk.count) return;
#pragma unroll
    for (int i = 0; i < kPanels; ++i) {
        load_box_to((1 << kCtas) - 1,
                    shared_address(to) + static_cast<uint32_t>(i * kPanelBytes + row * 128), map,
                    column + i * 64, static_cast<int>(chunk.token) + row, turns.filled());
    }
}

// 64 columns, to this CTA.
__device__ __forceinline__ void load_own(const CUtensorMap &map, int column,
                                         const AcrossChunk &chunk, const void *to,
                                         const Turns &turns) {
    barrier_expect(turns.filled(), static_cast<uint32_t>(kBoxBytes * chunk.boxes()));
#pragma unroll
    for (int row = 0; row < kStateChunk; row += kBoxRows) {
        if (row >= chunk.count) return;
        load_box(shared_address(to) + static_cast<uint32_t>(row * 128), map, column,
                 static_cast<int>(chunk.token) + row, turns.filled());
    }
}

// Of an item S, where it has one before it, and of each chunk U with the decays, W and k. One warp.
template <typename S> __device__ void feed_states(const ChunkArguments &c, const AcrossMaps &maps,
                                                  const AcrossPlaces &places,
                                                  AcrossShared *shared) {
    const DeltaArguments &a = c.delta;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    Next<kTiles> tiles;
    Next<kValues> values;
    const auto load_tile = [&](const auto &load) { // load(where to, its turns), by one thread
        const auto at = tiles.take();
        const Turns &turns = shared->tile_turns[at.slot];
        turns.wait_empty(at.phase);
        if (elect_one()) load(shared->tiles[at.slot], turns);
        __syncwarp();
    };
    for (int i = static_cast<int>(blockIdx.x); i < places.count; i += static_cast<int>(gridDim.x)) {
        const AcrossPlace place = places.at(i);
        for (int t = 0; place.item.from >= 0 && t < StateTiles<S>::kCount; ++t) {
            load_tile([&](const void *to, const Turns &turns) {
                barrier_expect(turns.filled(), kTileBytes);
                load_box(shared_address(to), maps.states,
                         place.column + t * StateTiles<S>::kColumns, place.head * kHeadDim,
                         place.item.from, turns.filled());
            });
        }
        for (int first = 0; first < place.item.token_count; first += kStateChunk) {
            const AcrossChunk chunk(a, place, first);
            const float2 *decays = c.gates + chunk.token * a.value_heads + chunk.head;
            const auto at = values.take();
            const Turns &turns = shared->value_turns[at.slot];
            turns.wait_empty(at.phase);
#pragma unroll
            for (int t = lane; t < kStateChunk; t += 32) { // beyond the tokens the last one's
                copy_async_pair(shared_address(&shared->decays[at.slot][t]),
                                decays + min(t, chunk.count - 1) * a.value_heads);
            }
            copy_async_arrive(turns.filled());
            if (elect_one()) {
                load_own(maps.mixed, 2 * a.keys_size() + chunk.head * kHeadDim + chunk.column,
                         chunk, shared->values[at.slot], turns);
            }
            __syncwarp();
            load_tile([&](const void *to, const Turns &full) {
                load_to_both<2>(maps.w, chunk.head * kHeadDim, chunk, to, full);
            });
            load_tile([&](const void *to, const Turns &full) {
                load_to_both<2>(maps.mixed, a.keys_size() + chunk.key_head * kHeadDim, chunk, to,
                                full);
            });
        }
    }
}

// Of each chunk q, P and the output gate. One warp.
__device__ void feed_results(const DeltaArguments &a, const AcrossMaps &maps,
                             const AcrossPlaces &places, AcrossShared *shared) {
    Next<kGroups> groups;
    for (int i = static_cast<int>(blockIdx.x); i < places.count; i += static_cast<int>(gridDim.x)) {
        const AcrossPlace place = places.at(i);
        for (int first = 0; first < place.item.token_count; first += kStateChunk) {
            const AcrossChunk chunk(a, place, first);
            const auto at = groups.take();
            const ResultTiles &tiles = shared->results[at.slot];
            const ResultTurns &turns = shared->result_turns[at.slot];
            turns.queries.wait_empty(at.phase);
            if (elect_one()) {
                load_to_both<2>(maps.mixed, chunk.key_head * kHeadDim, chunk, tiles.queries,
                                turns.queries);
            }
            __syncwarp();
            turns.p.wait_empty(at.phase);
            if (elect_one()) {
                load_to_both<1>(maps.p, chunk.head * kStateChunk, chunk, tiles.p, turns.p);
            }
            __syncwarp();
            turns.gates.wait_empty(at.phase);
            if (elect_one()) {
                load_own(maps.projected, a.channels() + chunk.head * kHeadDim + chunk.column, chunk,
                         tiles.gates, turns.gates);
            }
            __syncwarp();
        }
    }
}

} // namespace
} // namespace batchllm::cuda
