// Shared memory of the kernel that goes from chunk to chunk on Hopper (rule_sm90.cu), and the warp that fills it. All
// that a CTA does goes by way of two rings and what comes out of them:
//
//     places: S of an item (two places if it is in f32), or a chunk's k and q    filled by the feeder, emptied by states
//     values: of a chunk v, T and P                                              filled by the feeder, emptied by states
//     output gates                                                               filled by the feeder, emptied by results
//     found: results before the norm                                             filled by states, emptied by results
//
// A place says what it has, so that only the feeder looks at the step's items.
#pragma once

#include "attention/hopper.cuh"
#include "device/copies.cuh"
#include "device/tma.cuh"
#include "recurrent/across.cuh"
#include "recurrent/rule_gates.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kWarps = 4;       // of a warpgroup
constexpr int kStateGroups = 2; // warpgroups with S, 64 of the values each
constexpr int kResultWarps = 7; // of the other warpgroups; their last warp is the feeder
constexpr int kPlaces = 3;      // of the ring
constexpr int kTurns = 2;       // of the others

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
    // A warp has filled its part; what wgmma is to read it has fenced.
    __device__ __forceinline__ void publish() const {
        __syncwarp();
        if (elect_one()) barrier_arrive(filled());
    }
    // A warp is done with it.
    __device__ __forceinline__ void release() const {
        __syncwarp();
        if (elect_one()) barrier_arrive(shared_address(&empty));
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

// What a place has.
struct alignas(16) RuleWork {
    static constexpr int kState = -1, kEnd = 0;
    int count; // tokens of a chunk; kState; kEnd: nothing, and nothing comes after it
    int token; // the first
    int head;
    int state; // the slot for S behind this chunk; -1: the next place has the item's next chunk
};

struct RuleValues {
    alignas(1024) unsigned char v[2][kHalfBytes]; // 64 values each
    alignas(1024) unsigned char t[kHalfBytes],
        p[kHalfBytes]; // rows of 64 elements, of a token each
};

struct RuleShared {
    RulePlace places[kPlaces];
    RuleValues values[kTurns];
    alignas(
        1024) unsigned char found[kTurns][2][kHalfBytes]; // results before the norm, 64 values each
    alignas(1024) unsigned char output_gates[kTurns][2][kHalfBytes]; // as found
    RuleDecays gates[kPlaces];
    alignas(16) float norm[kHeadDim]; // its weights
    RuleWork works[kPlaces];
    Turns place_turns[kPlaces], value_turns[kTurns], found_turns[kTurns], gate_turns[kTurns];

    __device__ __forceinline__ void init() {
        for (Turns &t : place_turns) t.init(2, kStateGroups * kWarps + kResultWarps);
        for (Turns &t : value_turns) t.init(1, kStateGroups * kWarps);
        for (Turns &t : found_turns) t.init(kStateGroups * kWarps, kResultWarps);
        for (Turns &t : gate_turns) t.init(1, kResultWarps);
    }
    // What the place has, once it is there; the same in all lanes, and known to be.
    __device__ __forceinline__ RuleWork wait_for_work(const Next<kPlaces> &at) const {
        place_turns[at.slot].wait_full(at.phase);
        const RuleWork &work = works[at.slot];
        return {__shfl_sync(~0u, work.count, 0), __shfl_sync(~0u, work.token, 0),
                __shfl_sync(~0u, work.head, 0), __shfl_sync(~0u, work.state, 0)};
    }
};
static_assert(sizeof(RuleShared) <= 232448);

struct RuleMaps {
    CUtensorMap mixed, t, p, projected; // boxes of kBoxRows tokens
    CUtensorMap states; // of a slot all heads' rows, one after the other; boxes of a head's
};

// S as it lies in places: values of 128 bytes, all keys.
template <typename S> struct StatePlaces {
    static constexpr int kCount = sizeof(S) / 2, kColumns = 128 / static_cast<int>(sizeof(S));
};

// ---- The feeder ----

template <typename S> struct Feeder {
    const ChunkArguments &c;
    const RuleMaps &maps;
    RuleShared *shared;
    Next<kPlaces> places;
    Next<kTurns> values;

    __device__ __forceinline__ void feed_state(const StateItem &item, int head) {
#pragma unroll 1
        for (int t = 0; t < StatePlaces<S>::kCount; ++t) {
            const auto at = places.take();
            const Turns &turns = shared->place_turns[at.slot];
            turns.wait_empty(at.phase);
            if (elect_one()) {
                shared->works[at.slot].count = RuleWork::kState;
                barrier_expect(turns.filled(), 2 * kPanelBytes);
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    load_box(shared_address(shared->places[at.slot].panels[i]), maps.states,
                             (2 * t + i) * StatePlaces<S>::kColumns, head * kHeadDim, item.from,
                             turns.filled());
                }
            }
            turns.publish();
        }
    }
    __device__ __forceinline__ void feed_chunk(const RuleWork &work, const LaneGates &gates) {
        const DeltaArguments &a = c.delta;
        const int key_head = work.head / (a.value_heads / a.key_heads);
        const auto at = places.take();
        const Turns &turns = shared->place_turns[at.slot];
        turns.wait_empty(at.phase);
        if (elect_one()) {
            shared->works[at.slot] = work;
            barrier_expect(turns.filled(), 2 * token_bytes(work.count));
            const unsigned char *to = shared->places[at.slot].panels[0];
            load_tokens<2>(maps.mixed, a.keys_size() + key_head * kHeadDim, work.token, work.count,
                           to, kPanelBytes, turns.filled());
            load_tokens<2>(maps.mixed, key_head * kHeadDim, work.token, work.count, to + kHalfBytes,
                           kPanelBytes, turns.filled());
        }
        __syncwarp();
        // Of an item's first chunk they are still on their way.
        gates.leave(&shared->gates[at.slot]);
        turns.publish();
        const auto v = values.take();
        const Turns &value_turns = shared->value_turns[v.slot];
        value_turns.wait_empty(v.phase);
        if (elect_one()) {
            RuleValues &to = shared->values[v.slot];
            barrier_expect(value_turns.filled(), 2 * token_bytes(work.count));
            load_tokens<2>(maps.mixed, 2 * a.keys_size() + work.head * kHeadDim, work.token,
                           work.count, to.v[0], kHalfBytes, value_turns.filled());
            const int column = work.head * kStateChunk;
            load_tokens<1>(maps.t, column, work.token, work.count, to.t, 0, value_turns.filled());
            load_tokens<1>(maps.p, column, work.token, work.count, to.p, 0, value_turns.filled());
        }
        __syncwarp();
        const Turns &gate_turns = shared->gate_turns[v.slot];
        gate_turns.wait_empty(v.phase);
        if (elect_one()) {
            barrier_expect(gate_turns.filled(), token_bytes(work.count));
            load_tokens<2>(maps.projected, a.channels() + work.head * kHeadDim, work.token,
                           work.count, shared->output_gates[v.slot][0], kHalfBytes,
                           gate_turns.filled());
        }
        __syncwarp();
    }
    __device__ __forceinline__ void feed_end() {
        const auto at = places.take();
        const Turns &turns = shared->place_turns[at.slot];
        turns.wait_empty(at.phase);
        if (elect_one()) {
            shared->works[at.slot].count = RuleWork::kEnd;
            barrier_arrive(turns.filled());
        }
        turns.publish();
    }
    // Items and heads of the level, one after the other: an item's heads read the same keys.
    __device__ void run() {
        const DeltaArguments &a = c.delta;
        const StateLevel level = *a.level;
        const int count = (level.end - level.chunked) * a.value_heads;
        for (int i = static_cast<int>(blockIdx.x); i < count; i += static_cast<int>(gridDim.x)) {
            const StateItem item = a.items[level.chunked + i / a.value_heads];
            const int head = i % a.value_heads;
            LaneGates next;
            next.load(c, item, 0, head);
            if (item.from >= 0) feed_state(item, head);
            for (int first = 0; first < item.token_count; first += kStateChunk) {
                const LaneGates gates = next;
                const int left = item.token_count - first;
                if (left > kStateChunk) next.load(c, item, first + kStateChunk, head);
                feed_chunk({min(left, kStateChunk), item.token_begin + first, head,
                            left > kStateChunk ? -1 : item.state},
                           gates);
            }
        }
        feed_end();
    }
};

} // namespace
} // namespace batchllm::cuda
