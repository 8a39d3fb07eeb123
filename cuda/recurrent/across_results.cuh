// What the results' warpgroups do on Hopper (across_sm90.cu): results = exp(G) q S + P N by wgmma, a token's in a row
// of the accumulators, then norm and gate. A token's sum of squares is over this CTA's columns and the other's.
#pragma once

#include "recurrent/across_ring.cuh"

namespace batchllm::cuda {
namespace {

using Results =
    float[kAcrossColumns /
          2]; // of a thread: sum 4 n + e is at row lane / 4 + e / 2 * 8 of the warp's 16

// found (+)= left right^T: rows of kColumns
template <typename T, int kColumns> __device__ __forceinline__ void
multiply_rows(const unsigned char *left, const unsigned char *right, bool add, Results &found) {
    const Operand a(shared_address(left)), b(shared_address(right));
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kColumns / 16; ++k) {
        const uint32_t at = k / 4 * kPanelBytes + k % 4 * 32;
        wgmma_ss(found, a.at(at), b.at(at), add || k > 0, T());
    }
    wgmma_commit();
    wait_for(found);
}

// decays: of the thread's two rows
template <typename T>
__device__ __forceinline__ void make_results(const ResultTiles &tiles, const ResultTurns &turns,
                                             uint32_t phase, const float (&decays)[2],
                                             Results &found) {
    turns.queries.wait_full(phase);
    turns.state.wait_full(phase);
    multiply_rows<T, kHeadDim>(tiles.queries, tiles.state, false, found);
    turns.queries.release_to_both();
    turns.state.release();
#pragma unroll
    for (int i = 0; i < kAcrossColumns / 2; ++i) found[i] *= decays[i / 2 % 2];
    turns.p.wait_full(phase);
    turns.changes.wait_full(phase);
    multiply_rows<T, kStateChunk>(tiles.p, tiles.changes, true, found);
    turns.p.release_to_both();
    turns.changes.release();
}

// Of the thread's two rows, over this CTA's columns; the other CTA gets them too.
__device__ __forceinline__ void send_squares(const ResultTurns &turns, uint32_t turn, int row,
                                             const Results &found, float (&squares)[2]) {
    squares[0] = squares[1] = 0;
#pragma unroll
    for (int i = 0; i < kAcrossColumns / 2; ++i) squares[i / 2 % 2] += found[i] * found[i];
#pragma unroll
    for (float &sum : squares) {
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
    }
    const uint32_t full = shared_address(&turns.squares_full[turn]);
    if (threadIdx.x % 128 == 0) barrier_expect(full, kStateChunk * sizeof(float));
    if (threadIdx.x % 4 != 0) return;
    const uint32_t other = cluster_rank() ^ 1;
    const uint32_t to = address_in(shared_address(turns.squares[turn] + row), other);
    const uint32_t barrier = address_in(full, other);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        store_async(to + i * 8 * static_cast<int>(sizeof(float)), squares[i], barrier);
    }
}

// found: times the norm's weights and the gate. at: where the warp's rows of the gate are.
template <typename T>
__device__ __forceinline__ void gate_results(const Columns &at, int row,
                                             const float (&weights)[kAcrossColumns / 4],
                                             Results &found) {
#pragma unroll
    for (int n = 0; n < kAcrossColumns; n += 16) {
        uint32_t gates[4]; // rows 0 and 8 on of columns n on; of columns n + 8 on
        load_matrix(gates, at.at(row, n / 8 + static_cast<int>(threadIdx.x % 32) / 16));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 z =
                Pair<T>::wide(*reinterpret_cast<const typename Pair<T>::type *>(&gates[i]));
            float *pair = found + n / 2 + i / 2 * 4 + i % 2 * 2;
            const float *weight = weights + n / 4 + i / 2 * 2;
            pair[0] *= weight[0] * silu_approximate(z.x);
            pair[1] *= weight[1] * silu_approximate(z.y);
        }
    }
}

// scales: of the thread's two rows. By way of `at`, where the gate was, lanes get eight columns of every fourth row.
template <typename T>
__device__ __forceinline__ void turn_results(const Columns &at, int first, const float (&scales)[2],
                                             const Results &found, uint4 (&eights)[4]) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int n = 0; n < kAcrossColumns; n += 16) {
        uint32_t packed[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float *pair = found + n / 2 + i / 2 * 4 + i % 2 * 2;
            packed[i] = pack(pair[0] * scales[i % 2], pair[1] * scales[i % 2], T());
        }
        store_matrix(at.at(first + lane % 16, n / 8 + lane / 16), packed);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) eights[i] = load_shared(at.at(first + i * 4 + lane / 8, lane % 8));
}

// out: the warp's first row, of `count`
template <typename T> __device__ __forceinline__ void
store_results(const uint4 (&eights)[4], T *out, int64_t stride, int count) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    out += lane / 8 * stride + lane % 8 * 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (i * 4 + lane / 8 < count) {
            __stcs(reinterpret_cast<uint4 *>(out + i * 4 * stride), eights[i]);
        }
    }
}

// By warpgroup `group` of kGroups. The other CTA cannot be two turns ahead: it has waited for this one's sums of the
// turn before.
template <typename T> __device__ void finish(const ChunkArguments &c, const AcrossPlaces &places,
                                             AcrossShared *shared, uint32_t group) {
    const DeltaArguments &a = c.delta;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp_row = static_cast<int>(threadIdx.x) % 128 / 32 * 16, row = warp_row + lane / 4;
    const ResultTiles &tiles = shared->results[group];
    const ResultTurns &turns = shared->result_turns[group];
    const Columns gates{shared_address(tiles.gates)};
    float weights[kAcrossColumns / 4];
#pragma unroll
    for (int i = 0; i < kAcrossColumns / 4; ++i) {
        weights[i] = a.norm[static_cast<int>(cluster_rank()) * kAcrossColumns + i / 2 * 8 +
                            lane % 4 * 2 + i % 2];
    }
    uint32_t number = 0; // of chunks
    for (int i = static_cast<int>(blockIdx.x); i < places.count; i += static_cast<int>(gridDim.x)) {
        const AcrossPlace place = places.at(i);
        for (int first = 0; first < place.item.token_count; first += kStateChunk, ++number) {
            if (number % kGroups != group) continue;
            const AcrossChunk chunk(a, place, first);
            const uint32_t turn = number / kGroups % 2, phase = turn;
            const float2 *all = c.gates + chunk.token * a.value_heads + chunk.head;
            float decays[2], squares[2];
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                decays[e] = all[min(row + 8 * e, chunk.count - 1) * a.value_heads].x;
            }
            Results found;
            make_results<T>(tiles, turns, phase, decays, found);
            send_squares(turns, turn, row, found, squares);
            turns.gates.wait_full(phase);
            gate_results<T>(gates, warp_row + lane % 16, weights, found);
            barrier_wait(shared_address(&turns.squares_full[turn]), number / (2 * kGroups) % 2);
            float scales[2];
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const float all = squares[e] + turns.squares[turn][row + 8 * e];
                scales[e] = rsqrtf(all / static_cast<float>(kHeadDim) + a.epsilon);
            }
            uint4 eights[4];
            turn_results<T>(gates, warp_row, scales, found, eights);
            async_proxy_fence(); // before the next gates are loaded
            turns.gates.release();
            store_results<T>(eights,
                             static_cast<T *>(a.out) + (chunk.token + warp_row) * a.values_size() +
                                 chunk.head * kHeadDim + chunk.column,
                             a.values_size(), chunk.count - warp_row);
        }
    }
}

} // namespace
} // namespace batchllm::cuda
