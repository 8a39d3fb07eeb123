// What goes from chunk to chunk (chunk.h) on Hopper, by wgmma. Two CTAs of a cluster have the two halves of a value head's
// columns. Of a CTA's warpgroups the first has S^T in registers (across.cuh) and does what the next chunk waits for,
//     N^T = U^T - S^T W^T     S^T = exp(G_last) S^T + (exp(G_last - G) N)^T k,
// and leaves S^T and N^T of each chunk, in 16 bits, to the next two, which make the results, every second chunk each
// (across_results.cuh); two warps of the last feed them all (across_ring.cuh).
//
// Rows of a tile beyond a chunk's tokens hold anything. Those of N and k are made zero, so that such tokens leave S as it
// is; a row of q or P makes only its own token's result, which is not stored.
#include <type_traits>

#include "device/launch.cuh"
#include "device/tensor_map.h"
#include "device/wgmma_registers.cuh"
#include "recurrent/across_results.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kThreads = (2 + kGroups) * 128;

// Where the warpgroup with the states is.
struct StatePlace {
    Next<kTiles> tiles;
    Next<kValues> values;
    Next<kGroups> groups;
};

template <typename S>
__device__ __forceinline__ void read_state(AcrossShared *shared,
                                           const Next<kTiles> (&places)[StateTiles<S>::kCount],
                                           StateSums &state) {
    using Tiles = StateTiles<S>;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    int mine = 0;
#pragma unroll
    for (int t = 0; t < Tiles::kCount; ++t) {
        shared->tile_turns[places[t].slot].wait_full(places[t].phase);
        if (warp * 16 >= t * Tiles::kColumns) mine = places[t].slot;
    }
    const unsigned char *tile = shared->tiles[mine];
    visit_state([&](int i, int row, int column) {
        const int byte = column % Tiles::kColumns * static_cast<int>(sizeof(S));
        state[i] = to_float(*reinterpret_cast<const S *>(tile + row * 128 +
                                                         ((byte / 16 ^ row % 8) * 16 + byte % 16)));
    });
#pragma unroll
    for (const auto &place : places) shared->tile_turns[place.slot].release_to_both();
}

// Where a warp's lanes store rows of S^T or N^T by store_matrix: 16 columns from 16 k on.
__device__ __forceinline__ uint32_t operand_place(const unsigned char *tile, int k) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int piece = k % 4 * 2 + lane / 16;
    return shared_address(tile) +
           static_cast<uint32_t>(k / 4 * kPanelBytes + (warp * 16 + lane % 16) * 128 +
                                 (piece ^ lane % 8) * 16);
}

// changes = U^T
template <typename T>
__device__ __forceinline__ void read_values(const Columns &u, TokenSums &changes) {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int n = 0; n < kStateChunk; n += 16) {
        uint32_t
            pairs[4]; // tokens n on, the warp's first and second eight columns; tokens n + 8 on
        load_matrix_transposed(pairs, u.at(n + lane % 8 + lane / 16 * 8, warp * 2 + lane / 8 % 2));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 x =
                Pair<T>::wide(*reinterpret_cast<const typename Pair<T>::type *>(&pairs[i]));
            float *sums = changes + n / 2 + i / 2 * 4 + i % 2 * 2;
            sums[0] = x.x;
            sums[1] = x.y;
        }
    }
}

// changes -= S^T W^T; S^T is left in `copy` too. The first product starts when 16 columns of S^T are there.
template <typename T>
__device__ __forceinline__ void subtract_known(const StateSums &state, const unsigned char *w,
                                               const unsigned char *copy,
                                               uint32_t (&left)[kHeadDim / 4], TokenSums &changes) {
    const Operand rows(shared_address(w));
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
        auto &a = reinterpret_cast<uint32_t(&)[4]>(left[4 * k]);
        as_operand<T>(a, state + 8 * k, state + 8 * k + 4);
        store_matrix(operand_place(copy, k), a);
        wgmma_fence();
        wgmma_rs_minus(changes, a, rows.at(k / 4 * kPanelBytes + k % 4 * 32), 1,
                       std::integral_constant<int, kStateChunk>(), T());
    }
    wgmma_commit();
}

// S^T += (exp(G_last - G) N)^T k. decays: of the thread's columns of N^T
template <typename T> __device__ __forceinline__ void
advance_state(const TokenSums &changes, const float (&decays)[kStateChunk / 4],
              const unsigned char *k, uint32_t (&left)[kStateChunk / 4], StateSums &state) {
    const Operand keys(shared_address(k), kPanelBytes);
#pragma unroll
    for (int i = 0; i < kStateChunk / 16; ++i) {
        uint32_t *a = left + 4 * i;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float *pair = changes + 8 * i + 2 * j, *decay = decays + 4 * i + j / 2 * 2;
            a[j] = pack(pair[0] * decay[0], pair[1] * decay[1], T());
        }
        wgmma_fence();
        wgmma_rs(state, a, keys.at(i * 16 * 128), T());
    }
    wgmma_commit();
}

template <typename T>
__device__ __forceinline__ void leave_changes(const TokenSums &changes, const unsigned char *to) {
#pragma unroll
    for (int k = 0; k < kStateChunk / 16; ++k) {
        uint32_t a[4];
        as_operand<T>(a, changes + 8 * k, changes + 8 * k + 4);
        store_matrix(operand_place(to, k), a);
    }
}

// Where a chunk's are.
struct ChunkTiles {
    Next<kValues> u;
    Next<kTiles> w, keys;
    Next<kGroups> results;
};

// Rows of k from `count` on, by the warpgroup.
__device__ __forceinline__ void clear_rows(unsigned char *tile, int count) {
    for (int i = static_cast<int>(threadIdx.x); i < (kStateChunk - count) * 8; i += 128) {
#pragma unroll
        for (int p = 0; p < 2; ++p) {
            store_shared(shared_address(tile + p * kPanelBytes + count * 128 + i * 16), uint4{});
        }
    }
}

// Of N^T the columns from `count` on.
__device__ __forceinline__ void clear_changes(int count, TokenSums &changes) {
    const int first = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int i = 0; i < kStateChunk / 2; ++i) {
        if (i / 4 * 8 + first + i % 2 >= count) changes[i] = 0;
    }
}

// The next chunk: U goes to `changes`, and what the product with W needs is there.
template <typename T> __device__ __forceinline__ ChunkTiles take_chunk(AcrossShared *shared,
                                                                       StatePlace *at,
                                                                       TokenSums &changes) {
    const ChunkTiles now{at->values.take(), at->tiles.take(), at->tiles.take(), at->groups.take()};
    shared->value_turns[now.u.slot].wait_full(now.u.phase);
    read_values<T>(Columns{shared_address(shared->values[now.u.slot])}, changes);
    shared->tile_turns[now.w.slot].wait_full(now.w.phase);
    shared->result_turns[now.results.slot].state.wait_empty(now.results.phase);
    return now;
}

// next: the first chunk, whose U is in `changes`. A fence waits for what the thread has sent to the other CTA, and for its
// products: so a chunk's releases come last, and the fence of N^T when only the product with k is left.
template <typename T> __device__ __forceinline__ void step_through(int tokens, AcrossShared *shared,
                                                                   StatePlace *at, ChunkTiles next,
                                                                   TokenSums &changes,
                                                                   StateSums &state) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    uint32_t left[kHeadDim / 4], later[kStateChunk / 4];
    for (int first = 0; first < tokens; first += kStateChunk) {
        const ChunkTiles now = next;
        const int count = tokens - first; // of this chunk and those behind it
        const Turns &w_turns = shared->tile_turns[now.w.slot],
                    &key_turns = shared->tile_turns[now.keys.slot];
        const ResultTiles &results = shared->results[now.results.slot];
        const ResultTurns &turns = shared->result_turns[now.results.slot];
        const float2 *all = shared->decays[now.u.slot];
        const float decay = all[kStateChunk - 1].x;
        subtract_known<T>(state, shared->tiles[now.w.slot], results.state, left, changes);
        if (__any_sync(~0u, decay != 1)) { // ptxas would put it behind the products
#pragma unroll
            for (float &x : state) x *= decay;
        }
        key_turns.wait_full(now.keys.phase);
        if (count < kStateChunk) clear_rows(shared->tiles[now.keys.slot], count);
        async_proxy_fence(); // of S^T that was left, and of k
        if (count < kStateChunk) named_barrier(1, 128);
        float decays[kStateChunk / 4];
#pragma unroll
        for (int n = 0; n < kStateChunk / 8; ++n) {
            const float4 two = *reinterpret_cast<const float4 *>(all + 8 * n + lane % 4 * 2);
            decays[2 * n] = two.y, decays[2 * n + 1] = two.w;
        }
        shared->value_turns[now.u.slot].release();
        wait_for(changes);
        if (count < kStateChunk) clear_changes(count, changes);
        advance_state<T>(changes, decays, shared->tiles[now.keys.slot], later, state);
        turns.state.publish();
        turns.changes.wait_empty(now.results.phase);
        leave_changes<T>(changes, results.changes);
        if (count > kStateChunk) next = take_chunk<T>(shared, at, changes);
        async_proxy_fence();
        turns.changes.publish();
        wait_for(state); // what is in flight from pass to pass ptxas serialises
        w_turns.release_to_both();
        key_turns.release_to_both();
    }
}

template <typename T, typename S>
__device__ void compute(const ChunkArguments &c, const AcrossPlaces &places, AcrossShared *shared) {
    StatePlace at;
    for (int i = static_cast<int>(blockIdx.x); i < places.count; i += static_cast<int>(gridDim.x)) {
        const AcrossPlace place = places.at(i);
        const int tokens = __shfl_sync(~0u, place.item.token_count, 0); // known to be the same
        const bool read = place.item.from >= 0;
        Next<kTiles> from[StateTiles<S>::kCount];
#pragma unroll
        for (auto &tile : from) {
            if (read) tile = at.tiles.take();
        }
        TokenSums changes;
        StateSums state = {};
        const ChunkTiles first = take_chunk<T>(shared, &at, changes);
        if (read) read_state<S>(shared, from, state);
        step_through<T>(tokens, shared, &at, first, changes, state);
        store_state<S>(c.delta, place, state);
    }
}

template <typename T, typename S> __global__ void __cluster_dims__(kCtas, 1, 1)
    __launch_bounds__(kThreads, 1) across_chunks(const __grid_constant__ ChunkArguments c,
                                                 const __grid_constant__ AcrossMaps maps) {
    extern __shared__ __align__(1024) unsigned char memory[];
    auto *shared = reinterpret_cast<AcrossShared *>(memory);
    if (threadIdx.x == 0) {
        shared->init();
        barrier_init_fence();
    } else if (threadIdx.x == 32) {
        for (const CUtensorMap *map :
             {&maps.states, &maps.mixed, &maps.w, &maps.p, &maps.projected}) {
            prefetch_map(*map);
        }
    }
    cluster_sync();
    const AcrossPlaces places(c.delta);
    const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
    if (group == 0) {
        registers_more<184>();
        compute<T, S>(c, places, shared);
    } else if (group <= kGroups) {
        registers_more<144>();
        finish<T>(c, places, shared, static_cast<uint32_t>(group) - 1);
    } else {
        registers_fewer<40>();
        const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32 % kWarps, 0);
        if (warp == 0) feed_states<S>(c, maps, places, shared);
        if (warp == 1) feed_results(c.delta, maps, places, shared);
    }
    cluster_sync(); // the other CTA writes to this one's memory until it is done
}

template <typename T, typename S> cudaError_t launch(const ChunkArguments &c, cudaStream_t stream) {
    const DeltaArguments &a = c.delta;
    AcrossMaps maps;
    const auto map = [&](const void *data, int64_t columns, CUtensorMap *made) {
        return make_tensor_map(data, a.element, c.tokens, columns, kBoxRows, made);
    };
    const int64_t slots = (int64_t{1} << 40) / a.slot_bytes; // more than any device has
    cudaError_t status = map(c.mixed, a.channels(), &maps.mixed);
    if (status == cudaSuccess) status = map(c.w, int64_t{a.value_heads} * kHeadDim, &maps.w);
    if (status == cudaSuccess) status = map(c.p, int64_t{a.value_heads} * kStateChunk, &maps.p);
    if (status == cudaSuccess) status = map(a.projected, a.stride, &maps.projected);
    if (status == cudaSuccess) {
        status = make_tensor_map(a.states, a.state, int64_t{a.value_heads} * kHeadDim, kHeadDim,
                                 slots, a.slot_bytes, kHeadDim, &maps.states);
    }
    if (status != cudaSuccess) return status;
    // An item has at least one chunk.
    const int64_t most = int64_t{c.chunk_count} * a.value_heads * kCtas;
    const auto blocks = static_cast<unsigned>(std::min<int64_t>(most, a.sms / kCtas * kCtas));
    return launch_with_shared(across_chunks<T, S>, blocks, kThreads,
                              static_cast<int>(sizeof(AcrossShared)), stream, c, maps);
}

} // namespace

cudaError_t launch_across_sm90(const ChunkArguments &a, cudaStream_t stream) {
    return with_half(a.delta.element, [&](auto t) {
        return with_state(a.delta.state,
                          [&](auto s) { return launch<decltype(t), decltype(s)>(a, stream); });
    });
}

} // namespace batchllm::cuda
