// What feeds the kernel that goes from chunk to chunk on Hopper (across_sm90.cu): shared memory and its barriers, and
// the two warps that copy by TMA, one for the warpgroup that has the states, one for those that make the results. What
// several CTAs of a cluster need is loaded once: each loads its part of it, to all of them.
#pragma once

#include "attention/hopper.cuh"
#include "device/cluster.cuh"
#include "device/copies.cuh"
#include "device/tma.cuh"
#include "recurrent/across.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kWarps = 4;                    // of a warpgroup
constexpr int kCtas = AcrossPlaces::kBlocks; // of a share
constexpr int kPanelBytes =
    kDeltaChunk * 128; // 64 columns, swizzled as TMA writes and wgmma wants them
constexpr int kTileBytes = 2 * kPanelBytes;
constexpr int kTiles = 6, kValues = 3; // under way
constexpr int kGroups = 2;             // warpgroups that make results, every second chunk each
constexpr int kBoxRows = kDeltaChunk / 2, kBoxBytes = kBoxRows * 128;

// CTAs of a cluster that load together what all of them need.
struct Peers {
    int first, step, count; // the ranks
    int index;              // this CTA's

    __device__ __forceinline__ uint16_t mask() const {
        uint32_t ranks = 0;
        for (int i = 0; i < count; ++i) ranks |= 1u << (first + i * step);
        return static_cast<uint16_t>(ranks);
    }
};

// A cluster has one or two shares of CTAs. Each goes through all chunks of the same heads, and makes the results of every
// chunk or of every second one. A share's CTAs have 64 columns each.
struct Shares {
    int rank, count;

    __device__ __forceinline__ Shares()
        : rank(static_cast<int>(cluster_rank())), count(static_cast<int>(cluster_size()) / kCtas) {}
    __device__ __forceinline__ int index() const { return rank / kCtas; }
    __device__ __forceinline__ bool has(int chunk) const { // its results
        return (chunk & (count - 1)) == index();
    }
    __device__ __forceinline__ Peers all() const { return {0, 1, kCtas * count, rank}; }
    __device__ __forceinline__ Peers of_columns() const {
        return {rank % kCtas, kCtas, count, index()};
    }
    __device__ __forceinline__ Peers of_share() const {
        return {index() * kCtas, 1, kCtas, rank % kCtas};
    }
    // The CTA's places: from the first on, so many further each.
    __device__ __forceinline__ int first_place() const {
        return static_cast<int>(blockIdx.x) / (kCtas * count) * kCtas + rank % kCtas;
    }
    __device__ __forceinline__ int places_on() const { return static_cast<int>(gridDim.x) / count; }
};

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
    // The same where several CTAs load.
    __device__ __forceinline__ void release_to(const Peers &peers) const {
        __syncwarp();
        const int lane = static_cast<int>(threadIdx.x % 32);
        if (lane < peers.count) {
            barrier_arrive_at(shared_address(&empty),
                              static_cast<uint32_t>(peers.first + lane * peers.step));
        }
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
    alignas(1024) unsigned char state[kTileBytes];    // S^T before it, and
    alignas(1024) unsigned char changes[kPanelBytes]; // N^T, in 16 bits
    alignas(1024) unsigned char p[kPanelBytes];
};
struct ResultTurns {
    Turns queries, copies, p; // copies: state and changes
    // The other CTA's sums, of two turns: it may be one ahead.
    uint64_t squares_full[2];
    float squares[2][kDeltaChunk];
};

struct AcrossShared {
    alignas(1024) unsigned char tiles[kTiles][kTileBytes];    // S; W; k
    alignas(1024) unsigned char values[kValues][kPanelBytes]; // U
    ResultTiles results[kGroups];
    alignas(16) float2 decays[kValues][kDeltaChunk]; // exp(G), exp(G_last - G), with U
    Turns tile_turns[kTiles], value_turns[kValues];
    ResultTurns result_turns[kGroups];

    __device__ __forceinline__ void init(const Shares &shares) {
        for (Turns &t : tile_turns) t.init(1, shares.all().count * kWarps);
        for (Turns &t : value_turns) t.init(1 + 32, shares.count * kWarps);
        for (ResultTurns &r : result_turns) {
            r.queries.init(1, kCtas * kWarps);
            r.p.init(1, kCtas * kWarps);
            r.copies.init(kWarps, kWarps);
            for (uint64_t &full : r.squares_full) barrier_init(shared_address(&full), 1);
        }
    }
};
static_assert(sizeof(AcrossShared) <= 232448);

struct AcrossMaps {
    CUtensorMap mixed, w, p; // boxes of kBoxRows tokens
    CUtensorMap states;      // of a slot all heads' rows, one after the other; boxes of kStateRows
};

// 64 columns of S as they lie in tiles: columns of 128 bytes each, all rows.
constexpr int kStateRows = kHeadDim / 2;
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
          count(min(kDeltaChunk, place.item.token_count - first)) {}
    // Of tokens; a box of which none is there is not loaded.
    __device__ __forceinline__ int boxes() const { return (count + kBoxRows - 1) / kBoxRows; }
};

// kPanels times 64 columns. By one thread, as the next ones.
template <int kPanels> __device__ __forceinline__ void load_rows(const CUtensorMap &map, int column,
                                                                 const AcrossChunk &chunk,
                                                                 const Peers &peers, const void *to,
                                                                 const Turns &turns) {
    barrier_expect(turns.filled(), static_cast<uint32_t>(kPanels * kBoxBytes * chunk.boxes()));
    for (int i = peers.index; i < kPanels * 2; i += peers.count) {
        const int panel = i / 2, row = i % 2 * kBoxRows;
        if (row >= chunk.count) continue;
        const uint32_t there =
            shared_address(to) + static_cast<uint32_t>(panel * kPanelBytes + row * 128);
        const int at = column + panel * 64, token = static_cast<int>(chunk.token) + row;
        if (peers.count == 1) {
            load_box(there, map, at, token, turns.filled());
        } else {
            load_box_to(peers.mask(), there, map, at, token, turns.filled());
        }
    }
}

// A tile of the place's S.
__device__ __forceinline__ void load_state(const CUtensorMap &map, const AcrossPlace &place,
                                           int column, const Peers &peers, const void *to,
                                           const Turns &turns) {
    barrier_expect(turns.filled(), kTileBytes);
    for (int row = peers.index * kStateRows; row < kHeadDim; row += peers.count * kStateRows) {
        const uint32_t there = shared_address(to) + static_cast<uint32_t>(row * 128);
        const int at = place.head * kHeadDim + row;
        if (peers.count == 1) {
            load_box(there, map, column, at, place.item.from, turns.filled());
        } else {
            load_box_to(peers.mask(), there, map, column, at, place.item.from, turns.filled());
        }
    }
}

// Of an item S, where it has one before it, and of each chunk U with the decays, W and k. One warp.
template <typename S> __device__ void feed_states(const ChunkArguments &c, const AcrossMaps &maps,
                                                  const AcrossPlaces &places,
                                                  AcrossShared *shared) {
    const DeltaArguments &a = c.delta;
    const Shares shares;
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
    for (int i = shares.first_place(); i < places.count; i += shares.places_on()) {
        const AcrossPlace place = places.at(i);
        for (int t = 0; place.item.from >= 0 && t < StateTiles<S>::kCount; ++t) {
            load_tile([&](const void *to, const Turns &turns) {
                load_state(maps.states, place, place.column + t * StateTiles<S>::kColumns,
                           shares.of_columns(), to, turns);
            });
        }
        for (int first = 0; first < place.item.token_count; first += kDeltaChunk) {
            const AcrossChunk chunk(a, place, first);
            const float2 *decays = c.gates + chunk.token * a.value_heads + chunk.head;
            const auto at = values.take();
            const Turns &turns = shared->value_turns[at.slot];
            turns.wait_empty(at.phase);
#pragma unroll
            for (int t = lane; t < kDeltaChunk; t += 32) { // beyond the tokens the last one's
                copy_async_pair(shared_address(&shared->decays[at.slot][t]),
                                decays + min(t, chunk.count - 1) * a.value_heads);
            }
            copy_async_arrive(turns.filled());
            if (elect_one()) {
                load_rows<1>(maps.mixed, 2 * a.keys_size() + chunk.head * kHeadDim + chunk.column,
                             chunk, shares.of_columns(), shared->values[at.slot], turns);
            }
            __syncwarp();
            load_tile([&](const void *to, const Turns &full) {
                load_rows<2>(maps.w, chunk.head * kHeadDim, chunk, shares.all(), to, full);
            });
            load_tile([&](const void *to, const Turns &full) {
                load_rows<2>(maps.mixed, a.keys_size() + chunk.key_head * kHeadDim, chunk,
                             shares.all(), to, full);
            });
        }
    }
}

// Of each chunk whose results the share makes q and P. One warp.
__device__ void feed_results(const DeltaArguments &a, const AcrossMaps &maps,
                             const AcrossPlaces &places, AcrossShared *shared) {
    const Shares shares;
    Next<kGroups> groups;
    int number = 0; // of chunks
    for (int i = shares.first_place(); i < places.count; i += shares.places_on()) {
        const AcrossPlace place = places.at(i);
        for (int first = 0; first < place.item.token_count; first += kDeltaChunk) {
            if (!shares.has(number++)) continue;
            const AcrossChunk chunk(a, place, first);
            const auto at = groups.take();
            const ResultTiles &tiles = shared->results[at.slot];
            const ResultTurns &turns = shared->result_turns[at.slot];
            const auto load = [&](const Turns &full, const auto &load) { // by one thread
                full.wait_empty(at.phase);
                if (elect_one()) load();
                __syncwarp();
            };
            load(turns.queries, [&] {
                load_rows<2>(maps.mixed, chunk.key_head * kHeadDim, chunk, shares.of_share(),
                             tiles.queries, turns.queries);
            });
            load(turns.p, [&] {
                load_rows<1>(maps.p, chunk.head * kDeltaChunk, chunk, shares.of_share(), tiles.p,
                             turns.p);
            });
        }
    }
}

} // namespace
} // namespace batchllm::cuda
