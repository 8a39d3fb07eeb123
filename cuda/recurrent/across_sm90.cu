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

// U^T as in the sums of N^T, two of 16 bits each.
template <typename T>
__device__ __forceinline__ void read_values(const Columns &u, uint32_t (&values)[kDeltaChunk / 4]) {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int n = 0; n < kDeltaChunk; n += 16) {
        // tokens n on, the warp's first and second eight columns; tokens n + 8 on
        load_matrix_transposed(reinterpret_cast<uint32_t(&)[4]>(values[n / 4]),
                               u.at(n + lane % 8 + lane / 16 * 8, warp * 2 + lane / 8 % 2));
    }
}

// known = S^T W^T, and S^T *= decay meanwhile: by halves, or ptxas would put that behind the products. The first
// product starts when 16 columns of S^T are there in 16 bits. copy: S^T is left there too.
template <typename T>
__device__ __forceinline__ void multiply_known(StateSums &state, float decay,
                                               const unsigned char *w, const unsigned char *copy,
                                               uint32_t (&left)[kHeadDim / 4], TokenSums &known) {
    const Operand rows(shared_address(w));
    const bool decays = __any_sync(~0u, decay != 1);
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
        auto &a = reinterpret_cast<uint32_t(&)[4]>(left[4 * k]);
        as_operand<T>(a, state + 8 * k, state + 8 * k + 4);
        store_matrix(operand_place(copy, k), a);
        wgmma_fence();
        wgmma_rs(known, a, rows.at(k / 4 * kPanelBytes + k % 4 * 32), k > 0,
                 std::integral_constant<int, kDeltaChunk>(), T());
        if (k == kHeadDim / 16 - 1) wgmma_commit();
        if (k % 4 == 3 && decays) {
#pragma unroll
            for (int i = 8 * k - 24; i < 8 * k + 8; ++i) state[i] *= decay;
        }
    }
}

// N^T = U^T - known, in its place; S^T += (exp(G_last - G) N)^T k. decays: of the thread's columns of N^T
template <typename T>
__device__ __forceinline__ void advance_state(const uint32_t (&values)[kDeltaChunk / 4],
                                              const float (&decays)[kDeltaChunk / 4],
                                              const unsigned char *k, TokenSums &known,
                                              uint32_t (&left)[kDeltaChunk / 4], StateSums &state) {
    const Operand keys(shared_address(k), kPanelBytes);
#pragma unroll
    for (int i = 0; i < kDeltaChunk / 16; ++i) {
        uint32_t *a = left + 4 * i;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float2 u = Pair<T>::wide(
                *reinterpret_cast<const typename Pair<T>::type *>(&values[4 * i + j]));
            float *pair = known + 8 * i + 2 * j;
            const float *decay = decays + 4 * i + j / 2 * 2;
            pair[0] = u.x - pair[0], pair[1] = u.y - pair[1];
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
    for (int k = 0; k < kDeltaChunk / 16; ++k) {
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

// Rows of U and k from `count` on, by the warpgroup.
__device__ __forceinline__ void clear_rows(unsigned char *u, unsigned char *k, int count) {
    for (int i = static_cast<int>(threadIdx.x); i < (kDeltaChunk - count) * 8; i += 128) {
        for (unsigned char *panel : {u, k, k + kPanelBytes}) {
            store_shared(shared_address(panel + count * 128 + i * 16), uint4{});
        }
    }
    async_proxy_fence();
    named_barrier(1, 128);
}

// Of what is by tokens the columns from `count` on.
__device__ __forceinline__ void clear_columns(int count, TokenSums &sums) {
    const int first = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int i = 0; i < kDeltaChunk / 2; ++i) {
        if (i / 4 * 8 + first + i % 2 >= count) sums[i] = 0;
    }
}

// The next chunk, whose U, decays and W are there.
__device__ __forceinline__ ChunkTiles take_chunk(AcrossShared *shared, StatePlace *at) {
    const ChunkTiles now{at->values.take(), at->tiles.take(), at->tiles.take(), at->groups.take()};
    shared->value_turns[now.u.slot].wait_full(now.u.phase);
    shared->tile_turns[now.w.slot].wait_full(now.w.phase);
    return now;
}

// A fence waits for what the thread has sent to other CTAs, and for its products: so all else that the product with k
// gives time for comes before the fence, and a chunk's releases after it.
template <typename T> __device__ __forceinline__ void
step_through(int tokens, AcrossShared *shared, StatePlace *at, ChunkTiles now, StateSums &state) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    uint32_t left[kHeadDim / 4], later[kDeltaChunk / 4], values[kDeltaChunk / 4];
    float decays[kDeltaChunk / 4];
    TokenSums changes;
    for (int count = tokens; count > 0; count -= kDeltaChunk) { // of this chunk and those behind it
        const Turns &u_turns = shared->value_turns[now.u.slot],
                    &w_turns = shared->tile_turns[now.w.slot],
                    &key_turns = shared->tile_turns[now.keys.slot],
                    &copy_turns = shared->result_turns[now.results.slot].copies;
        const ResultTiles &results = shared->results[now.results.slot];
        copy_turns.wait_empty(now.results.phase);
        const float2 *all = shared->decays[now.u.slot];
        multiply_known<T>(state, all[kDeltaChunk - 1].x, shared->tiles[now.w.slot], results.state,
                          left, changes);
        key_turns.wait_full(now.keys.phase);
        unsigned char *u = shared->values[now.u.slot], *k = shared->tiles[now.keys.slot];
        if (count < kDeltaChunk) clear_rows(u, k, count);
        read_values<T>(Columns{shared_address(u)}, values);
#pragma unroll
        for (int n = 0; n < kDeltaChunk / 8; ++n) {
            const float4 two = *reinterpret_cast<const float4 *>(all + 8 * n + lane % 4 * 2);
            decays[2 * n] = two.y, decays[2 * n + 1] = two.w;
        }
        u_turns.release();
        wait_for(changes);
        w_turns.release_to_both();
        if (count < kDeltaChunk) clear_columns(count, changes);
        advance_state<T>(values, decays, k, changes, later, state);
        leave_changes<T>(changes, results.changes);
        if (count > kDeltaChunk) now = take_chunk(shared, at);
        async_proxy_fence();
        copy_turns.publish();
        wait_for(state); // what is in flight from pass to pass ptxas serialises
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
        StateSums state = {};
        const ChunkTiles first = take_chunk(shared, &at);
        if (read) read_state<S>(shared, from, state);
        step_through<T>(tokens, shared, &at, first, state);
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
        for (const CUtensorMap *map : {&maps.states, &maps.mixed, &maps.w, &maps.p}) {
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
    if (status == cudaSuccess) status = map(c.p, int64_t{a.value_heads} * kDeltaChunk, &maps.p);
    if (status == cudaSuccess) {
        status = make_tensor_map(a.states, a.state, int64_t{a.value_heads} * kHeadDim, kHeadDim,
                                 slots, a.slot_bytes, kHeadDim, &maps.states);
    }
    if (status != cudaSuccess) return status;
    // An item has at least one chunk.
    const int64_t most = int64_t{c.most_chunks} * a.value_heads * kCtas;
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
