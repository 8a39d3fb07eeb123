// The gated delta rule of chunks (chunk.h) on Hopper, from q, k, v and gates to the normed and gated results, by wgmma.
// A CTA has one value head of one item at a time and goes from chunk to chunk. With x = k S, in terms of S before the
// chunk, neither W nor U of chunk.h is needed:
//     N = T rate (v - exp(G) x)     results = exp(G) q S + P N     S = exp(G_last) S + k^T (exp(G_last - G) N)
// T and P are there already (rule_weights_sm90.cu). Of a CTA's warpgroups two have S^T in registers (across.cuh), 64 of
// the values each, and do everything that follows from it; of the other two, seven warps norm and gate
// (rule_results.cuh) and one feeds all of them (rule_ring.cuh, which says who waits for whom).
//
// Rows of a tile beyond a chunk's tokens hold anything. Those of k and N are made zero; a row of q or P makes only its
// own token's result, which is not stored.
#include <type_traits>

#include "device/launch.cuh"
#include "device/tensor_map.h"
#include "device/wgmma_registers.cuh"
#include "recurrent/rule_results.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kThreads = (kStateGroups + 2) * 128;

// Keeps what makes the sums before this and what reads them after it: the compiler would move them past waits.
template <int kSums> __device__ __forceinline__ void pin(float (&sums)[kSums]) {
#pragma unroll
    for (float &x : sums) asm volatile("" : "+f"(x));
}

// Of the item's first place or places; they are left.
template <typename S> __device__ __forceinline__ void
read_state(RuleShared *shared, Next<kPlaces> first, Next<kPlaces> *places, StateSums &state) {
    using Places = StatePlaces<S>;
    const int value = static_cast<int>(threadIdx.x) / 32 * 16; // the warp's first
    const int mine = value / Places::kColumns / 2;
    const unsigned char *panel = nullptr;
    Next<kPlaces> at = first;
#pragma unroll
    for (int t = 0; t < Places::kCount; ++t) {
        if (t > 0) at = places->take();
        shared->place_turns[at.slot].wait_full(at.phase);
        if (t == mine) panel = shared->places[at.slot].panels[value / Places::kColumns % 2];
        if (t != mine) shared->place_turns[at.slot].release();
        if (t == mine) first = at;
    }
    visit_state([&](int i, int row, int column) {
        const int byte = column % Places::kColumns * static_cast<int>(sizeof(S));
        state[i] = to_float(*reinterpret_cast<const S *>(panel + row * 128 +
                                                         ((byte / 16 ^ row % 8) * 16 + byte % 16)));
    });
    shared->place_turns[first.slot].release();
}

// x = S^T k^T, results = S^T q^T. A part of S^T is packed when the part before the last one is no longer read: to keep
// all of it as operands would take more registers than there are.
template <typename T> __device__ __forceinline__ void
multiply_state(const StateSums &state, const Operand &rows, TokenSums &x, TokenSums &results) {
    constexpr std::integral_constant<int, kStateChunk> kTokens;
    constexpr int kParts = 4, kEach = kHeadDim / 16 / kParts;
    uint32_t left[2][kEach][4];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
        if (part > 1) wgmma_wait<1>();
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            const int k = part * kEach + i;
            as_operand<T>(left[part % 2][i], state + 8 * k, state + 8 * k + 4);
        }
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            const int k = part * kEach + i;
            const uint32_t at = k / 4 * kPanelBytes + k % 4 * 32;
            wgmma_rs(x, left[part % 2][i], rows.at(at), k > 0, kTokens, T());
            wgmma_rs(results, left[part % 2][i], rows.at(at + kHalfBytes), k > 0, kTokens, T());
        }
        wgmma_commit();
    }
}

// sums (+)= left right^T, of tokens
template <typename T> __device__ __forceinline__ void
multiply_tokens(const uint32_t *left, const Operand &right, bool add, TokenSums &sums) {
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kStateChunk / 16; ++k) {
        wgmma_rs(sums, left + 4 * k, right.at(k * 32), add || k > 0,
                 std::integral_constant<int, kStateChunk>(), T());
    }
    wgmma_commit();
}

// Of a tile of tokens by the warpgroup's 64 values, where a lane's matrices of 16 by 16 are, turned over: of the first 16
// tokens and the warp's 16 values.
__device__ __forceinline__ uint32_t turned_place(const unsigned char *tile) {
    const int lane = thread_anew() % 32;
    const int warp = thread_anew() % 128 / 32;
    return Columns{shared_address(tile)}.at(lane % 8 + lane / 16 * 8, warp * 2 + lane / 8 % 2);
}

// Of an operand the tokens from `count` on.
__device__ __forceinline__ void clear_tokens(int count, uint32_t (&operand)[kStateChunk / 4]) {
    if (count == kStateChunk) return;
    const int first = thread_anew() % 4 * 2;
#pragma unroll
    for (int i = 0; i < kStateChunk / 4; ++i) {
        const int token = i / 2 * 8 + first;
        if (token + 1 >= count) operand[i] = token < count ? operand[i] & 0xffff : 0;
    }
}

// changes = v - exp(G) x as an operand, zero from token `count` on. values: turned_place of v
template <typename T>
__device__ __forceinline__ void subtract_known(uint32_t values, const float *decays, int count,
                                               const TokenSums &x,
                                               uint32_t (&changes)[kStateChunk / 4]) {
    const int first = thread_anew() % 4 * 2;
#pragma unroll
    for (int n = 0; n < kStateChunk; n += 16) {
        uint32_t v[4]; // tokens n on, the warp's first and second eight values; tokens n + 8 on
        load_matrix_transposed(v, values + static_cast<uint32_t>(n * 128));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 by = *reinterpret_cast<const float2 *>(decays + first + n + i / 2 * 8);
            const float2 wanted =
                Pair<T>::wide(*reinterpret_cast<const typename Pair<T>::type *>(&v[i]));
            const float *known = x + n / 2 + i * 2;
            changes[n / 4 + i] = pack(wanted.x - by.x * known[0], wanted.y - by.y * known[1], T());
        }
    }
    clear_tokens(count, changes);
}

// By exp(G).
__device__ __forceinline__ void scale_results(const RuleDecays &gates, TokenSums &results) {
    const int lane = thread_anew() % 32;
#pragma unroll
    for (int n = 0; n < kStateChunk / 8; ++n) {
        const float2 two = *reinterpret_cast<const float2 *>(gates.decays + 8 * n + lane % 4 * 2);
        results[4 * n] *= two.x, results[4 * n + 1] *= two.y;
        results[4 * n + 2] *= two.x, results[4 * n + 3] *= two.y;
    }
}

// left = N^T as an operand
template <typename T> __device__ __forceinline__ void
pack_changes(const TokenSums &changes, uint32_t (&left)[kStateChunk / 4]) {
#pragma unroll
    for (int k = 0; k < kStateChunk / 16; ++k) {
        as_operand<T>(left + 4 * k, changes + 8 * k, changes + 8 * k + 4);
    }
}

// left = (exp(G_last - G) N)^T as an operand
template <typename T> __device__ __forceinline__ void
pack_decayed(const RuleDecays &gates, const TokenSums &changes, uint32_t (&left)[kStateChunk / 4]) {
    const int lane = thread_anew() % 32;
#pragma unroll
    for (int n = 0; n < kStateChunk / 8; ++n) {
        const float2 two = *reinterpret_cast<const float2 *>(gates.to_last + 8 * n + lane % 4 * 2);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const float *pair = changes + 4 * n + 2 * j;
            left[2 * n + j] = pack(pair[0] * two.x, pair[1] * two.y, T());
        }
    }
}

// S^T += left k
template <typename T> __device__ __forceinline__ void
advance_state(const uint32_t *left, const Operand &keys, StateSums &state) {
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kStateChunk / 16; ++i) {
        wgmma_rs(state, left + 4 * i, keys.at(static_cast<uint32_t>(i * 16 * 128)), T());
    }
    wgmma_commit();
}

// As rows of tokens.
template <typename T>
__device__ __forceinline__ void leave_results(const TokenSums &results, uint32_t to) {
#pragma unroll
    for (int n = 0; n < kStateChunk; n += 16) {
        uint32_t r[4];
        as_operand<T>(r, results + n / 2, results + n / 2 + 4);
        store_matrix_transposed(to + static_cast<uint32_t>(n * 128), r);
    }
}

// Where a state's warpgroup is in what it takes by turns.
struct StateTurns {
    Next<kPlaces> places;
    Next<kTurns> others;
};

// One chunk, whose place is there.
template <typename T> __device__ __forceinline__ void step(RuleShared *shared,
                                                           const Next<kPlaces> &at,
                                                           const Next<kTurns> &turn, int count,
                                                           int group, StateSums &state) {
    RulePlace &place = shared->places[at.slot];
    const RuleDecays &gates = shared->gates[at.slot];
    const RuleValues &values = shared->values[turn.slot];
    const Turns &value_turns = shared->value_turns[turn.slot],
                &found_turns = shared->found_turns[turn.slot];
    TokenSums x, results;
    uint32_t left[kStateChunk / 4], decayed[kStateChunk / 4];
    // Made here, as each takes long and products would wait for it.
    const Operand rows(shared_address(place.panels[0])),
        keys(shared_address(place.panels[0]), kPanelBytes);
    const Operand t(shared_address(values.t)), p(shared_address(values.p));
    const uint32_t wanted = turned_place(values.v[group]),
                   found = turned_place(shared->found[turn.slot][group]);
    wgmma_wait<0>(); // there is nothing; else ptxas would wait for every product
    pin(state);
    multiply_state<T>(state, rows, x, results);
    const float decay = gates.decays[kStateChunk - 1];
    if (__any_sync(~0u, decay != 1)) { // ptxas would put it behind the products
#pragma unroll
        for (float &x : state) x *= decay;
    }
    value_turns.wait_full(turn.phase);
    wgmma_wait<0>();
    pin(x);
    pin(results);
    subtract_known<T>(wanted, gates.decays, count, x, left);
    multiply_tokens<T>(left, t, false, x);
    if (count < kStateChunk) { // the other warpgroup does the same
        clear_keys(&place, count);
        async_proxy_fence();
        named_barrier(1 + group, 128);
    }
    scale_results(gates, results);
    wgmma_wait<0>();
    pin(x);
    pack_changes<T>(x, left);
    clear_tokens(count, left); // T's rows there are anything
    multiply_tokens<T>(left, p, true, results);
    pack_decayed<T>(gates, x, decayed);
    clear_tokens(count, decayed);
    advance_state<T>(decayed, keys, state);
    found_turns.wait_empty(turn.phase);
    wgmma_wait<1>();
    pin(results);
    leave_results<T>(results, found);
    found_turns.publish();
    value_turns.release();
    wgmma_wait<0>();
    pin(state);
    shared->place_turns[at.slot].release();
}

// By each of the first kStateGroups warpgroups.
template <typename T, typename S>
__device__ void keep_states(const DeltaArguments &a, RuleShared *shared, int group) {
    StateTurns turns;
    for (;;) {
        auto at = turns.places.take();
        RuleWork work = shared->wait_for_work(at);
        if (work.count == RuleWork::kEnd) return;
        StateSums state = {};
        if (work.count == RuleWork::kState) {
            read_state<S>(shared, at, &turns.places, state);
            at = turns.places.take();
            work = shared->wait_for_work(at);
        }
        for (;;) {
            step<T>(shared, at, turns.others.take(), work.count, group, state);
            if (work.state >= 0) break;
            at = turns.places.take();
            work = shared->wait_for_work(at);
        }
        S *to = state_of<S>(a, work.state, work.head);
        visit_state([&](int i, int row, int column) {
            to[row * kHeadDim + column] = from_float<S>(state[i]);
        });
    }
}

template <typename T, typename S> __global__ void __launch_bounds__(kThreads, 1)
    delta_rule(const __grid_constant__ ChunkArguments c, const __grid_constant__ RuleMaps maps) {
    extern __shared__ __align__(1024) unsigned char memory[];
    auto *shared = reinterpret_cast<RuleShared *>(memory);
    if (threadIdx.x == 0) {
        shared->init();
        barrier_init_fence();
    } else if (threadIdx.x == 32) {
        for (const CUtensorMap *map :
             {&maps.mixed, &maps.t, &maps.p, &maps.projected, &maps.states}) {
            prefetch_map(*map);
        }
    }
    if (threadIdx.x < kHeadDim) shared->norm[threadIdx.x] = c.delta.norm[threadIdx.x];
    __syncthreads();
    const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
    if (group < kStateGroups) {
        registers_more<176>();
        keep_states<T, S>(c.delta, shared, group);
    } else {
        registers_fewer<80>();
        const int warp =
            __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32 - kStateGroups * kWarps, 0);
        if (warp < kResultWarps) {
            finish_results<T>(c, shared, static_cast<uint32_t>(warp));
        } else {
            Feeder<S>{c, maps, shared, {}, {}}.run();
        }
    }
}

template <typename T, typename S> cudaError_t launch(const ChunkArguments &c, cudaStream_t stream) {
    const DeltaArguments &a = c.delta;
    RuleMaps maps;
    const int64_t slots = (int64_t{1} << 40) / a.slot_bytes; // more than any device has
    const auto map = [&](const void *data, int64_t columns, CUtensorMap *made) {
        return make_tensor_map(data, a.element, c.tokens, columns, kBoxRows, made);
    };
    cudaError_t status = map(c.mixed, a.channels(), &maps.mixed);
    if (status == cudaSuccess) status = map(a.projected, a.stride, &maps.projected);
    if (status == cudaSuccess) status = map(c.w, int64_t{a.value_heads} * kStateChunk, &maps.t);
    if (status == cudaSuccess) status = map(c.p, int64_t{a.value_heads} * kStateChunk, &maps.p);
    if (status == cudaSuccess) {
        status = make_tensor_map(a.states, a.state, int64_t{a.value_heads} * kHeadDim, kHeadDim,
                                 slots, a.slot_bytes, kHeadDim, &maps.states);
    }
    if (status != cudaSuccess) return status;
    // An item has at least one chunk.
    const int64_t most = int64_t{c.most_chunks} * a.value_heads;
    const auto blocks = static_cast<unsigned>(std::min<int64_t>(most, a.sms));
    return launch_with_shared(delta_rule<T, S>, blocks, kThreads,
                              static_cast<int>(sizeof(RuleShared)), stream, c, maps);
}

} // namespace

cudaError_t launch_rule_sm90(const ChunkArguments &a, cudaStream_t stream) {
    return with_half(a.delta.element, [&](auto t) {
        return with_state(a.delta.state,
                          [&](auto s) { return launch<decltype(t), decltype(s)>(a, stream); });
    });
}

} // namespace batchllm::cuda
