// Mamba-2's rule by products of matrices, kStateChunk tokens of an item at a time: the form of arXiv 2405.21060, for
// heads of 128 keys by 64 values in bf16, sums in f32.
//
// With G_i the logarithm of the decay from the chunk's beginning up to token i, and S the state before the chunk:
//     P_ij    = exp(G_i - G_j) step_j q_i . k_j   for j <= i
//     results = exp(G) q S + P v + skip v, times silu(z), unless that is last
//     S       = exp(G_last) S + k^T (exp(G_last - G) step v)
// state_space_inputs.cu makes q, k, v, G and steps. Here a block has an item and a head, and goes through its chunks: four
// warps make the results, 16 tokens each. Four more have S in the accumulators of their products, 32 keys each, leave it
// rounded to bf16 in shared memory for the others' q S, and copy the next chunk.
#include "attention/hopper.cuh"
#include "device/copies.cuh"
#include "device/launch.cuh"
#include "recurrent/chunk.cuh"
#include "recurrent/state_space.h"

#include <algorithm>

namespace batchllm::cuda {
namespace space {
namespace {

using Element = __nv_bfloat16;

constexpr int kKeys = 128, kValues = 64, kTokens = kStateChunk;
constexpr int kGroup = 128, kThreads = 2 * kGroup, kWarps = kGroup / 32;
constexpr int kBlocks = 2; // on an SM, at most
static_assert(kTokens == 16 * kWarps && kKeys == 32 * kWarps);
constexpr int kKept = 1; // a barrier

__device__ __forceinline__ int warp_of_group() {
    return static_cast<int>(threadIdx.x % kGroup / 32);
}

// In shared memory. Of the chunk and the next one by turns: what is read until a chunk's end.
struct Tiles {
    Tile<kKeys> queries, keys;     // [kTokens, kKeys]
    Tile<kValues> values, outputs; // [kTokens, kValues]; outputs: z, then the results. By turns
    float2 *
        gates; // [kTokens] G to base 2, and step; beyond the chunk's tokens the last one's. By turns
    Tile<kValues> kept, state; // [kTokens, kValues]: v times what of it S keeps; [kKeys, kValues]
    static constexpr int kKeyBytes = kTokens * kKeys * 2, kValueBytes = kTokens * kValues * 2;
    static constexpr int kTurnBytes = 2 * kValueBytes + kTokens * static_cast<int>(sizeof(float2));
    static constexpr int kBytes =
        2 * kKeyBytes + 2 * kTurnBytes + kValueBytes + kKeys * kValues * 2;

    __device__ __forceinline__ Tiles(unsigned char *memory, int turn)
        : queries{shared_address(memory)}, keys{queries.base + kKeyBytes},
          values{keys.base + kKeyBytes + turn * kTurnBytes}, outputs{values.base + kValueBytes},
          gates(reinterpret_cast<float2 *>(memory + 2 * kKeyBytes + turn * kTurnBytes +
                                           2 * kValueBytes)),
          kept{keys.base + kKeyBytes + 2 * kTurnBytes}, state{kept.base + kValueBytes} {}
};
static_assert(Tiles::kBytes <= 99 * 1024, "a block on 8.6 and 8.9, two on 9.0");

__device__ __forceinline__ uint32_t load_pair(uint32_t address) {
    uint32_t pair;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(pair) : "r"(address) : "memory");
    return pair;
}
__device__ __forceinline__ void store_pair(uint32_t address, uint32_t pair) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(pair) : "memory");
}
__device__ __forceinline__ float2 wide(uint32_t pair) {
    return Pair<Element>::wide(*reinterpret_cast<const __nv_bfloat162 *>(&pair));
}

// Asynchronously, by a group.
__device__ __forceinline__ void copy_chunk(const StateSpaceChunks &c, const ChunkPlace &place,
                                           int head, const Tiles &to) {
    const DeltaArguments &a = c.space.delta;
    const int thread = static_cast<int>(threadIdx.x % kGroup);
    const int key_head = head / (a.value_heads / a.key_heads);
    const Element *row = static_cast<const Element *>(c.mixed) + place.token * a.channels();
    const Element *queries = row + key_head * kKeys;
    const auto stride = static_cast<int64_t>(a.channels());
    to.queries.copy<kGroup>(thread, queries, stride, place.count);
    to.keys.copy<kGroup>(thread, queries + a.keys_size(), stride, place.count);
    to.values.copy<kGroup>(thread, row + 2 * a.keys_size() + head * kValues, stride, place.count);
    const Element *outputs = projected_of<Element>(a, place.token) + a.channels() + head * kValues;
    to.outputs.copy<kGroup>(thread, outputs, a.stride, place.count);
    if (thread < kTokens) {
        const int64_t token = place.token + min(thread, place.count - 1);
        copy_async_pair(shared_address(to.gates + thread), c.gates + token * a.value_heads + head);
    }
    copy_async_commit();
}

// v times exp(G_last - G) step, by the group with S.
__device__ __forceinline__ void scale_values(const Tiles &tiles, int count) {
    const float last = tiles.gates[kTokens - 1].x;
#pragma unroll
    for (int i = 0; i < kTokens * kValues / 8 / kGroup; ++i) {
        const int at = i * kGroup + static_cast<int>(threadIdx.x % kGroup);
        const int row = at / (kValues / 8), piece = at % (kValues / 8);
        const uint4 raw = load_shared(tiles.values.at(row, piece));
        const float2 gate = tiles.gates[row];
        const float scale = row < count ? exp2_approximate(last - gate.x) * gate.y : 0.0f;
        const auto scaled_pair = [&](uint32_t pair) {
            const float2 x = wide(pair);
            return pack(x.x * scale, x.y * scale, Element());
        };
        store_shared(tiles.kept.at(row, piece), {scaled_pair(raw.x), scaled_pair(raw.y),
                                                 scaled_pair(raw.z), scaled_pair(raw.w)});
    }
}

// 16 rows by 64 columns, as the right operand of eight products.
struct Right {
    uint32_t columns[4][4];

    // load(b, n): columns [n, n + 16)
    template <typename Load> __device__ __forceinline__ void load(const Load &load) {
#pragma unroll
        for (int n = 0; n < 4; ++n) load(columns[n], 16 * n);
    }
};

// d [16, 64] += a [16, 16] right
__device__ __forceinline__ void multiply(float (*d)[4], const uint32_t (&a)[4],
                                         const Right &right) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        mma_sync(d[2 * n], a, right.columns[n][0], right.columns[n][1], Element());
        mma_sync(d[2 * n + 1], a, right.columns[n][2], right.columns[n][3], Element());
    }
}

// Of the warp's 16 tokens: results before skip and gate.
__device__ __forceinline__ void make_results(const Tiles &tiles, float (&results)[8][4]) {
    const int warp = warp_of_group(), lane = static_cast<int>(threadIdx.x % 32);
    const int first = 16 * warp, row = first + lane / 4, column = lane % 4 * 2;
    float p[8][4] = {};
    Right keys, states; // while one is multiplied, the other comes
    const auto load_keys = [&](int k) {
        keys.load([&](uint32_t(&b)[4], int n) { tiles.keys.load_transposed_b(b, k, n); });
    };
    load_keys(0);
#pragma unroll
    for (int k = 0; k < kKeys; k += 16) {
        uint32_t query[4];
        tiles.queries.load_a(query, first, k);
        states.load([&](uint32_t(&b)[4], int n) { tiles.state.load_b(b, k, n); });
        multiply(p, query, keys);
        if (k + 16 < kKeys) load_keys(k + 16);
        multiply(results, query, states);
    }
    __syncthreads(); // S, q and k are no longer read
    const float sums[2] = {tiles.gates[row].x, tiles.gates[row + 8].x};
#pragma unroll
    for (int n = 0; n < 8; ++n) {
        const float4 two = *reinterpret_cast<const float4 *>(tiles.gates + 8 * n + column);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int other = 8 * n + column + e % 2;
            const float sum = e % 2 == 0 ? two.x : two.z, step = e % 2 == 0 ? two.y : two.w;
            const bool seen = other <= row + e / 2 * 8;
            p[n][e] = seen ? p[n][e] * exp2_approximate(sums[e / 2] - sum) * step : 0.0f;
        }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float decay = exp2_approximate(sums[half]);
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            results[n][2 * half] *= decay, results[n][2 * half + 1] *= decay;
        }
    }
#pragma unroll
    for (int k = 0; k < kTokens / 16; ++k) {
        Right values;
        values.load([&](uint32_t(&b)[4], int n) { tiles.values.load_b(b, 16 * k, n); });
        const float(*of)[4] = p + 2 * k;
        const uint32_t a[4] = {
            pack(of[0][0], of[0][1], Element()), pack(of[0][2], of[0][3], Element()),
            pack(of[1][0], of[1][1], Element()), pack(of[1][2], of[1][3], Element())};
        multiply(results, a, values);
    }
}

// With skip and, if kGated, gate, to memory by way of the tile of z, of which the warp has its rows for itself.
template <bool kGated>
__device__ __forceinline__ void store_results(const DeltaArguments &a, const ChunkPlace &place,
                                              int head, float skip, const Tiles &tiles,
                                              const float (&results)[8][4]) {
    const int lane = static_cast<int>(threadIdx.x % 32), first = 16 * warp_of_group();
    const auto gate = [](float z) { return kGated ? silu_approximate(z) : 1.0f; };
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            const int row = first + lane / 4 + 8 * half;
            const uint32_t at = tiles.outputs.at(row, n) + lane % 4 * 4;
            const float2 value = wide(load_pair(tiles.values.at(row, n) + lane % 4 * 4));
            const float2 z = wide(load_pair(at));
            const float x = (results[n][2 * half] + skip * value.x) * gate(z.x);
            const float y = (results[n][2 * half + 1] + skip * value.y) * gate(z.y);
            store_pair(at, pack(x, y, Element()));
        }
    }
    __syncwarp();
    const int piece = lane % 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int row = first + 4 * i + lane / 8;
        if (row >= place.count) break;
        Element *to = static_cast<Element *>(a.out) + (place.token + row) * a.values_size() +
                      head * kValues + piece * 8;
        *reinterpret_cast<uint4 *>(to) = load_shared(tiles.outputs.at(row, piece));
    }
}

// A warp's part of S: 32 keys, in the layout of two products' accumulators.
using WarpState = float[2][8][4];

// action(pair, key, columns' piece, column): of each two neighbours
template <typename Action>
__device__ __forceinline__ void for_each_pair(WarpState &state, const Action &action) {
    const int warp = warp_of_group(), lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int n = 0; n < 8; ++n) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                action(&state[m][n][2 * half], 32 * warp + 16 * m + 8 * half + lane / 4, n,
                       lane % 4 * 2);
            }
        }
    }
}

__device__ __forceinline__ void share_state(const Tiles &tiles, WarpState &state) {
    for_each_pair(state, [&](const float *x, int key, int piece, int column) {
        store_pair(tiles.state.at(key, piece) + column * 2, pack(x[0], x[1], Element()));
    });
}

__device__ __forceinline__ void advance(const Tiles &tiles, int count, WarpState &state) {
    const int warp = warp_of_group();
    scale_values(tiles, count);
    named_barrier(kKept, kGroup);
    const float decay = exp2_approximate(tiles.gates[kTokens - 1].x);
    for_each_pair(state, [&](float *x, int, int, int) { x[0] *= decay, x[1] *= decay; });
#pragma unroll
    for (int k = 0; k < kTokens; k += 16) {
        Right kept;
        kept.load([&](uint32_t(&b)[4], int n) { tiles.kept.load_b(b, k, n); });
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            uint32_t key[4];
            tiles.keys.load_transposed_a(key, 32 * warp + 16 * m, k);
            multiply(state[m], key, kept);
        }
    }
}

// The item's chunks, by the group with S.
template <typename S> __device__ __forceinline__ void run_states(const StateSpaceChunks &c,
                                                                 const StateItem &item, int head,
                                                                 unsigned char *memory, int *turn) {
    const DeltaArguments &a = c.space.delta;
    copy_chunk(c, ChunkPlace(item, 0), head, Tiles(memory, *turn));
    WarpState state = {};
    if (item.from >= 0) {
        const S *from = state_of<S>(a, item.from, head);
        for_each_pair(state, [&](float *x, int key, int piece, int column) {
            const float2 two = load_state_pair(from + key * kValues + piece * 8 + column);
            x[0] = two.x, x[1] = two.y;
        });
    }
    share_state(Tiles(memory, *turn), state);
    for (int first = 0; first < item.token_count; first += kTokens, *turn ^= 1) {
        copy_async_wait<0>();
        __syncthreads(); // the chunk is there, and so is S
        const Tiles tiles(memory, *turn);
        advance(tiles, item.token_count - first, state);
        __syncthreads(); // the others are done with S, q and k
        if (first + kTokens < item.token_count) {
            copy_chunk(c, ChunkPlace(item, first + kTokens), head, Tiles(memory, *turn ^ 1));
            share_state(tiles, state);
        }
    }
    S *to = state_of<S>(a, item.state, head);
    for_each_pair(state, [&](const float *x, int key, int piece, int column) {
        store_state_pair(to + key * kValues + piece * 8 + column, x[0], x[1]);
    });
}

// By the other.
template <bool kGated>
__device__ __forceinline__ void run_results(const StateSpaceArguments &s, const StateItem &item,
                                            int head, unsigned char *memory, int *turn) {
    const float skip = s.skip == nullptr ? 0.0f : s.skip[head];
    for (int first = 0; first < item.token_count; first += kTokens, *turn ^= 1) {
        __syncthreads();
        const Tiles tiles(memory, *turn);
        float results[8][4] = {};
        make_results(tiles, results);
        store_results<kGated>(s.delta, ChunkPlace(item, first), head, skip, tiles, results);
    }
}

template <typename S, bool kGated> __global__ void __launch_bounds__(kThreads, kBlocks)
    state_space_chunks(const __grid_constant__ StateSpaceChunks c) {
    extern __shared__ __align__(128) unsigned char memory[];
    const DeltaArguments &a = c.space.delta;
    const int head = static_cast<int>(blockIdx.x);
    const StateLevel level = *a.level;
    int turn = 0;
    for (int i = level.chunked + static_cast<int>(blockIdx.y); i < level.end; i += gridDim.y) {
        const StateItem item = a.items[i];
        if (threadIdx.x < kGroup) {
            run_results<kGated>(c.space, item, head, memory, &turn);
        } else {
            run_states<S>(c, item, head, memory, &turn);
        }
    }
}

} // namespace
} // namespace space

static_assert(takes_state_space_chunks(DType::bf16, space::kKeys, space::kValues));

cudaError_t launch_state_space_chunks(const StateSpaceChunks &c, cudaStream_t stream) {
    const DeltaArguments &a = c.space.delta;
    if (c.chunk_count == 0 || c.item_count == 0) return cudaSuccess;
    if (!takes_state_space_chunks(a.element, a.key_dim, a.value_dim) || a.key_heads < 1 ||
        a.value_heads % a.key_heads != 0) {
        return cudaErrorInvalidValue;
    }
    if (const cudaError_t code = launch_state_space_inputs(c, stream); code != cudaSuccess) {
        return code;
    }
    // Two rounds of the device at least: a graph's next replay may have many more items than the step that was captured.
    const int least = 2 * space::kBlocks * std::max(a.sms, 1);
    const int of_head = std::max(c.item_count, (least + a.value_heads - 1) / a.value_heads);
    const dim3 grid(static_cast<unsigned>(a.value_heads),
                    static_cast<unsigned>(std::min(of_head, 65535)));
    return with_state(a.state, [&](auto state) {
        using S = decltype(state);
        const auto kernel = c.space.gate_last ? space::state_space_chunks<S, false>
                                              : space::state_space_chunks<S, true>;
        return launch_with_shared(kernel, grid, space::kThreads, space::Tiles::kBytes, stream, c);
    });
}

} // namespace batchllm::cuda
