// What goes from chunk to chunk (chunk.h) on Hopper: by wgmma, S^T and N^T its left operands from registers
// (across.cuh). Two CTAs of a cluster have the two halves of a value head's columns. Of a CTA's warpgroups one computes;
// one feeds it (across_ring.cuh); one gates and norms the results, for which the two CTAs exchange each token's sum of
// squares. S^T q^T is in flight while N is made, and a chunk's results leave during the next one's first product.
#include <type_traits>

#include "device/cluster.cuh"
#include "device/launch.cuh"
#include "device/wgmma_registers.cuh"
#include "recurrent/across_ring.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kThreads = 3 * 128, kWarps = 4; // of a warpgroup
constexpr int kResults = 2;                   // chunks whose results are under way

struct AcrossShared {
    AcrossRing ring;
    alignas(128) unsigned char results[kResults][kDeltaChunk * Columns::kRowBytes];
    float squares[kResults][kDeltaChunk]; // the other CTA's sums
    uint64_t results_full[kResults], results_empty[kResults], squares_full[kResults];
};

// Place among the chunks whose results are under way.
struct ResultPlace {
    int slot = 0;
    uint32_t phase = 0;
    __device__ __forceinline__ void advance() {
        slot ^= 1;
        phase ^= slot == 0;
    }
};

// ---- Computing ----

template <typename S>
__device__ __forceinline__ void read_state(RingPlace *ring, StateSums &state) {
    using Tile = StateTile<S>;
    RingPlace now = *ring;
    visit_state([&](int i, int row, int column) {
        if (i % (Tile::kRows / 2) == 0) {
            now = ring->take();
            barrier_wait(now.full(), now.phase);
        }
        constexpr int kEach = 16 / sizeof(S);
        const unsigned char *from = now.ring->tiles[now.slot] +
                                    Tile::at(row % Tile::kRows, column / kEach) +
                                    column % kEach * sizeof(S);
        state[i] = to_float(*reinterpret_cast<const S *>(from));
        if ((i + 1) % (Tile::kRows / 2) == 0) now.release();
    });
}

// sums = S^T times the tile's transpose
template <typename T> __device__ __forceinline__ void
multiply_by_state(const uint32_t (&state)[kHeadDim / 4], uint32_t tile, TokenSums &sums) {
    const Operand rows(tile);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
        wgmma_rs(sums, state + 4 * k, rows.at(k / 4 * kHalfBytes + k % 4 * 32), k > 0,
                 std::integral_constant<int, kDeltaChunk>(), T());
    }
    wgmma_commit();
}

// found += N^T P^T
template <typename T> __device__ __forceinline__ void
add_within(const uint32_t (&changes)[kDeltaChunk / 4], uint32_t tile, TokenSums &found) {
    const Operand p(tile);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kDeltaChunk / 16; ++k) {
        wgmma_rs(found, changes + 4 * k, p.at(k * 32), 1,
                 std::integral_constant<int, kDeltaChunk>(), T());
    }
    wgmma_commit();
}

// S^T += changes k
template <typename T> __device__ __forceinline__ void
advance_state(const uint32_t (&changes)[kDeltaChunk / 4], uint32_t tile, StateSums &state) {
    const Operand keys(tile, kHalfBytes);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kDeltaChunk / 16; ++k) {
        wgmma_rs(state, changes + 4 * k, keys.at(k * 16 * 128), T());
    }
    wgmma_commit();
}

template <typename T, int kSums>
__device__ __forceinline__ void as_operands(const float (&sums)[kSums], uint32_t (&a)[kSums / 2]) {
#pragma unroll
    for (int k = 0; k < kSums / 8; ++k) as_operand<T>(a + 4 * k, sums + 8 * k, sums + 8 * k + 4);
}

// found: results of the CTA's columns, to the warpgroup that norms them.
template <typename T> __device__ __forceinline__ void
hand_over(AcrossShared *shared, const TokenSums &found, ResultPlace *place) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Columns results{shared_address(shared->results[place->slot])};
    barrier_wait(shared_address(&shared->results_empty[place->slot]), place->phase ^ 1);
#pragma unroll
    for (int n = 0; n < kDeltaChunk; n += 16) { // tokens
        uint32_t pairs[4];
        as_operand<T>(pairs, found + n / 2, found + n / 2 + 4);
        store_matrix_transposed(results.at(n + lane / 16 * 8 + lane % 8, warp * 2 + lane / 8 % 2),
                                pairs);
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(&shared->results_full[place->slot]));
    place->advance();
}

template <typename T>
__device__ __forceinline__ void step_through(int tokens, AcrossShared *shared, RingPlace *ring,
                                             ResultPlace *results, StateSums &state) {
    TokenSums known, found;
    uint32_t left[kHeadDim / 4], changes[kDeltaChunk / 4], later[kDeltaChunk / 4];
    for (int first = 0; first < tokens; first += kDeltaChunk) {
        const RingPlace w = ring->take(), queries = ring->take(), within = ring->take(),
                        keys = ring->take();
        as_operands<T>(state, left);
        w.wait_full();
        multiply_by_state<T>(left, w.tile(), known);
        wgmma_wait<1>(); // for ptxas, which would serialise them all for what follows
        if (first > 0) hand_over<T>(shared, found, results); // the chunk's before
        queries.wait_full();
        multiply_by_state<T>(left, queries.tile(), found);
        within.wait_full();
        const float2 *decays = within.decays();
        decay_state(decays, state);
        wgmma_wait<1>(); // known
        w.release();
        subtract_from<T>(Columns{within.tile()}, known);
        as_operands<T>(known, changes);
        decay_tokens<true>(decays, known);
        as_operands<T>(known, later);
        keys.wait_full();
        advance_state<T>(later, keys.tile(), state);
        wgmma_wait<1>(); // found
        queries.release();
        decay_tokens<false>(decays, found);
        add_within<T>(changes, within.tile() + kHalfBytes, found);
        wgmma_wait<0>(); // what is in flight from pass to pass ptxas serialises
        within.release();
        keys.release();
    }
    hand_over<T>(shared, found, results);
}

template <typename T, typename S>
__device__ void compute(const ChunkArguments &c, const AcrossPlaces &places, AcrossShared *shared) {
    RingPlace ring(&shared->ring);
    ResultPlace results;
    for (int i = static_cast<int>(blockIdx.x); i < places.count; i += static_cast<int>(gridDim.x)) {
        const AcrossPlace place = places.at(i);
        const int tokens = __shfl_sync(~0u, place.item.token_count, 0); // known to be the same
        StateSums state = {};
        if (place.item.from >= 0) read_state<S>(&ring, state);
        step_through<T>(tokens, shared, &ring, &results, state);
        store_state<S>(c.delta, place, state);
    }
}

// ---- Gated norm ----

// Eight threads have a token's columns of this CTA, eight columns each, of each sixteenth token.
constexpr int kTurns = kDeltaChunk / 16;

// total: each token's sum of squares over this CTA's columns -> over all of the head.
__device__ __forceinline__ void add_squares(AcrossShared *shared, const ResultPlace &at, int thread,
                                            float (&total)[kTurns]) {
    const uint32_t other = cluster_rank() ^ 1;
    const uint32_t full = shared_address(&shared->squares_full[at.slot]);
    float *theirs = shared->squares[at.slot];
    if (thread == 0) barrier_expect(full, kDeltaChunk * sizeof(float));
    if (thread % 8 == 0) {
        const uint32_t to = address_in(shared_address(theirs + thread / 8), other);
        const uint32_t barrier = address_in(full, other);
#pragma unroll
        for (int i = 0; i < kTurns; ++i) {
            store_async(to + i * 16 * static_cast<int>(sizeof(float)), total[i], barrier);
        }
    }
    barrier_wait(full, at.phase);
#pragma unroll
    for (int i = 0; i < kTurns; ++i) total[i] += theirs[thread / 8 + 16 * i];
}

// The other CTA cannot be two chunks ahead: for its last one it has waited for this one's sums. Nor does it write here
// once this CTA has left, which waits for all of its sums.
template <typename T>
__device__ void finish(const ChunkArguments &c, const AcrossPlaces &places, AcrossShared *shared) {
    const DeltaArguments &a = c.delta;
    const int thread = static_cast<int>(threadIdx.x) % 128, piece = thread % 8, row = thread / 8;
    ResultPlace at;
    for (int i = static_cast<int>(blockIdx.x); i < places.count; i += static_cast<int>(gridDim.x)) {
        const AcrossPlace place = places.at(i);
        const int column = place.column + piece * 8, all = place.head * kHeadDim + column;
        float weights[8];
        load8(a.norm + column, weights);
        for (int first = 0; first < place.item.token_count; first += kDeltaChunk, at.advance()) {
            const int count = min(kDeltaChunk, place.item.token_count - first);
            const int64_t token = int64_t{place.item.token_begin} + first;
            const T *gates = projected_of<T>(a, token) + a.channels() + all;
            Packed8<T> gate[kTurns], result[kTurns];
#pragma unroll
            for (int t = 0; t < kTurns; ++t) {
                gate[t] = load_once(gates + min(row + 16 * t, count - 1) * a.stride);
            }
            barrier_wait(shared_address(&shared->results_full[at.slot]), at.phase);
            float squares[kTurns];
#pragma unroll
            for (int t = 0; t < kTurns; ++t) {
                const Columns from{shared_address(shared->results[at.slot])};
                result[t].bits = load_shared(from.at(row + 16 * t, piece));
                float x[8], sum = 0;
                widen(result[t], x);
#pragma unroll
                for (const float one : x) sum += one * one;
#pragma unroll
                for (int offset = 1; offset < 8; offset *= 2) {
                    sum += __shfl_xor_sync(~0u, sum, offset);
                }
                squares[t] = sum;
            }
            __syncwarp();
            if (thread % 32 == 0) barrier_arrive(shared_address(&shared->results_empty[at.slot]));
            add_squares(shared, at, thread, squares);
            T *out = static_cast<T *>(a.out) + token * a.values_size() + all;
#pragma unroll
            for (int t = 0; t < kTurns; ++t) {
                if (row + 16 * t >= count) break;
                const float scale = rsqrtf(squares[t] / static_cast<float>(kHeadDim) + a.epsilon);
                float x[8], z[8];
                widen(result[t], x);
                widen(gate[t], z);
#pragma unroll
                for (int e = 0; e < 8; ++e) x[e] *= scale * weights[e] * silu_approximate(z[e]);
                store8(out + int64_t{row + 16 * t} * a.values_size(), x);
            }
        }
    }
}

template <typename T, typename S> __global__ void __cluster_dims__(AcrossPlaces::kBlocks, 1, 1)
    __launch_bounds__(kThreads, 1) across_chunks(const __grid_constant__ ChunkArguments c) {
    extern __shared__ __align__(1024) unsigned char memory[];
    auto *shared = reinterpret_cast<AcrossShared *>(memory);
    if (threadIdx.x == 0) {
        shared->ring.init(128, kWarps);
        for (int i = 0; i < kResults; ++i) {
            barrier_init(shared_address(&shared->results_full[i]), kWarps);
            barrier_init(shared_address(&shared->results_empty[i]), kWarps);
            barrier_init(shared_address(&shared->squares_full[i]), 1);
        }
        barrier_init_fence();
    }
    cluster_sync();
    const AcrossPlaces places(c.delta);
    if (threadIdx.x < 128) {
        registers_more<240>();
        compute<T, S>(c, places, shared);
    } else if (threadIdx.x < 256) {
        registers_fewer<96>();
        feed<T, S>(c, places, RingPlace(&shared->ring));
    } else {
        registers_fewer<128>();
        finish<T>(c, places, shared);
    }
}

template <typename T, typename S> cudaError_t launch(const ChunkArguments &a, cudaStream_t stream) {
    constexpr int kBlocks = AcrossPlaces::kBlocks;
    // An item has at least one chunk.
    const int64_t most = int64_t{a.most_chunks} * a.delta.value_heads * kBlocks;
    const auto blocks =
        static_cast<unsigned>(std::min<int64_t>(most, a.delta.sms / kBlocks * kBlocks));
    return launch_with_shared(across_chunks<T, S>, blocks, kThreads,
                              static_cast<int>(sizeof(AcrossShared)), stream, a);
}

} // namespace

cudaError_t launch_across_sm90(const ChunkArguments &a, cudaStream_t stream) {
    return with_half(a.delta.element, [&](auto t) {
        return with_state(a.delta.state,
                          [&](auto s) { return launch<decltype(t), decltype(s)>(a, stream); });
    });
}

} // namespace batchllm::cuda
