// Mamba-2's rule by products of matrices, kDeltaChunk tokens of an item at a time: the form of arXiv 2405.21060, for
// heads of 128 keys by 64 values in bf16, sums in f32.
//
// With G_i the logarithm of the decay from the chunk's beginning up to token i, and S the state before the chunk:
//     P_ij    = exp(G_i - G_j) step_j q_i . k_j   for j <= i
//     results = exp(G) q S + P v + skip v, times silu(z)
//     S       = exp(G_last) S + k^T (exp(G_last - G) step v)
// One launch convolves all tokens of the level's chunks. In another a block has an item and a head, and goes through its
// chunks with S in the accumulators of its products, 32 keys a warp, and rounded to bf16 in shared memory for q S.
#include "device/launch.cuh"
#include "recurrent/chunk.cuh"
#include "recurrent/convolve.cuh"
#include "recurrent/state_space.h"

#include <algorithm>

namespace batchllm::cuda {
namespace space {
namespace {

using Element = __nv_bfloat16;

constexpr int kKeys = 128, kValues = 64, kTokens = kDeltaChunk;
constexpr int kThreads = 128, kWarps = kThreads / 32;
static_assert(kTokens == 16 * kWarps && kKeys == 32 * kWarps);

struct Place {
    DeltaItem item;
    int64_t token; // the first
    int count;     // tokens
    int first;     // of the item's

    __device__ Place(const DeltaItem &item, int first)
        : item(item), token(int64_t{item.token_begin} + first),
          count(min(kTokens, item.token_count - first)), first(first) {}
};

struct ChunkGates {
    float sums[kTokens],
        steps[kTokens];  // G to base 2; beyond the chunk's tokens the last one's, and 0
    float rest[kTokens]; // exp(G_last - G) step
};

// In shared memory, one after the other.
struct ChunkTiles {
    Tile<kKeys> queries, keys; // [kTokens, kKeys]
    Tile<kValues> values, kept,
        state; // [kTokens, kValues] twice, kept: times rest; [kKeys, kValues]
    static constexpr int kBytes = (2 * kTokens * (kKeys + kValues) + kKeys * kValues) * 2;

    __device__ explicit ChunkTiles(uint32_t base)
        : queries{base}, keys{base + kTokens * kKeys * 2}, values{keys.base + kTokens * kKeys * 2},
          kept{values.base + kTokens * kValues * 2}, state{kept.base + kTokens * kValues * 2} {}
};

__device__ __forceinline__ uint32_t load_pair(uint32_t address) {
    uint32_t pair;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(pair) : "r"(address) : "memory");
    return pair;
}
__device__ __forceinline__ void store_pair(uint32_t address, uint32_t pair) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(pair) : "memory");
}
__device__ __forceinline__ float2 wide(uint32_t pair) {
    return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162 *>(&pair));
}

// Of the chunk's tokens, by one warp, a lane two.
__device__ __forceinline__ void make_gates(const StateSpaceArguments &s, const Place &place,
                                           int head, ChunkGates *to) {
    const DeltaArguments &a = s.delta;
    const int lane = static_cast<int>(threadIdx.x % 32);
    const float rate = -expf(a.decay[head]) * kLog2e, bias = a.step[head];
    float decays[2] = {}, steps[2] = {};
#pragma unroll
    for (int e = 0; e < 2; ++e) {
        if (2 * lane + e >= place.count) continue;
        const Element *row = projected_of<Element>(a, place.token + 2 * lane + e);
        const float x = to_float(row[a.channels() + a.values_size() + head]) + bias;
        const float softplus = x > 20.0f ? x : log1pf(expf(x));
        steps[e] = fminf(fmaxf(softplus, s.least_step), s.most_step);
        decays[e] = rate * steps[e];
    }
    float sum = decays[0] + decays[1]; // up to the lane's second token
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
        const float before = __shfl_up_sync(~0u, sum, offset);
        if (lane >= offset) sum += before;
    }
    const float sums[2] = {sum - decays[1], sum}, last = __shfl_sync(~0u, sum, 31);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
        to->sums[2 * lane + e] = sums[e];
        to->steps[2 * lane + e] = steps[e];
        to->rest[2 * lane + e] = exp2_approximate(last - sums[e]) * steps[e];
    }
}

// values times rest, by all threads.
__device__ __forceinline__ void scale_values(const ChunkTiles &tiles, const ChunkGates &gates) {
#pragma unroll
    for (int i = static_cast<int>(threadIdx.x); i < kTokens * kValues / 8; i += kThreads) {
        const int row = i / (kValues / 8), piece = i % (kValues / 8);
        const uint4 raw = load_shared(tiles.values.at(row, piece));
        const float rest = gates.rest[row];
        const auto scaled_pair = [&](uint32_t pair) {
            const float2 x = wide(pair);
            return pack(x.x * rest, x.y * rest, Element());
        };
        store_shared(tiles.kept.at(row, piece), {scaled_pair(raw.x), scaled_pair(raw.y),
                                                 scaled_pair(raw.z), scaled_pair(raw.w)});
    }
}

// d [16, 16 kCount] += a [16, 16] b, b's columns from n = 0 on; load(n): 16 columns of b.
template <int kCount, typename Load> __device__ __forceinline__ void
multiply(float (*d)[4], const uint32_t (&a)[4], int count, const Load &load) {
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
        if (n >= count) break;
        uint32_t b[4];
        load(b, 16 * n);
        mma_sync(d[2 * n], a, b[0], b[1], Element());
        mma_sync(d[2 * n + 1], a, b[2], b[3], Element());
    }
}

// Of the warp's 16 tokens: results before skip and gate.
__device__ __forceinline__ void make_results(const ChunkTiles &tiles, const ChunkGates &gates,
                                             float (&results)[8][4]) {
    const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
    const int first = 16 * warp, row = first + lane / 4, column = lane % 4 * 2;
    float p[8][4] = {};
#pragma unroll
    for (int k = 0; k < kKeys; k += 16) {
        uint32_t query[4];
        tiles.queries.load_a(query, first, k);
        multiply<4>(results, query, 4,
                    [&](uint32_t(&b)[4], int n) { tiles.state.load_b(b, k, n); });
        multiply<4>(p, query, warp + 1,
                    [&](uint32_t(&b)[4], int n) { tiles.keys.load_turned_b(b, k, n); });
    }
    const float sums[2] = {gates.sums[row], gates.sums[row + 8]};
    const float decays[2] = {exp2_approximate(sums[0]), exp2_approximate(sums[1])};
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int other = 8 * n + column + e % 2;
            const float decay = exp2_approximate(sums[e / 2] - gates.sums[other]);
            p[n][e] = other <= row + e / 2 * 8 ? p[n][e] * decay * gates.steps[other] : 0.0f;
            results[n][e] *= decays[e / 2];
        }
    }
#pragma unroll
    for (int k = 0; k < kTokens / 16; ++k) {
        if (k > warp) break;
        const float(*of)[4] = p + 2 * k;
        const uint32_t a[4] = {
            pack(of[0][0], of[0][1], Element()), pack(of[0][2], of[0][3], Element()),
            pack(of[1][0], of[1][1], Element()), pack(of[1][2], of[1][3], Element())};
        multiply<4>(results, a, 4,
                    [&](uint32_t(&b)[4], int n) { tiles.values.load_b(b, 16 * k, n); });
    }
}

// With skip and gate, to memory.
__device__ __forceinline__ void store_results(const StateSpaceArguments &s, const Place &place,
                                              int head, const ChunkTiles &tiles,
                                              const float (&results)[8][4]) {
    const DeltaArguments &a = s.delta;
    const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
    const float skip = s.skip == nullptr ? 0.0f : s.skip[head];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = 16 * warp + lane / 4 + 8 * half;
        if (row >= place.count) continue;
        const int64_t token = place.token + row;
        const int at = head * kValues + lane % 4 * 2;
        const Element *gates = projected_of<Element>(a, token) + a.channels() + at;
        Element *to = static_cast<Element *>(a.out) + token * a.values_size() + at;
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            const float2 value = wide(load_pair(tiles.values.at(row, n) + lane % 4 * 4));
            const float2 z = wide(*reinterpret_cast<const uint32_t *>(gates + 8 * n));
            const float x = (results[n][2 * half] + skip * value.x) * silu_approximate(z.x);
            const float y = (results[n][2 * half + 1] + skip * value.y) * silu_approximate(z.y);
            *reinterpret_cast<uint32_t *>(to + 8 * n) = pack(x, y, Element());
        }
    }
}

// A warp's part of S: 32 keys, in the layout of two products' accumulators.
using WarpState = float[2][8][4];

// action(pair, key, columns' piece, column): of each two neighbours
template <typename Action>
__device__ __forceinline__ void for_each_pair(WarpState &state, const Action &action) {
    const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
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

__device__ __forceinline__ void share_state(const ChunkTiles &tiles, WarpState &state) {
    for_each_pair(state, [&](const float *x, int key, int piece, int column) {
        store_pair(tiles.state.at(key, piece) + column * 2, pack(x[0], x[1], Element()));
    });
}

__device__ __forceinline__ void advance(const ChunkTiles &tiles, const ChunkGates &gates,
                                        WarpState &state) {
    const int warp = static_cast<int>(threadIdx.x / 32);
    const float decay = exp2_approximate(gates.sums[kTokens - 1]);
    for_each_pair(state, [&](float *x, int, int, int) { x[0] *= decay, x[1] *= decay; });
#pragma unroll
    for (int k = 0; k < kTokens; k += 16) {
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            uint32_t key[4];
            tiles.keys.load_turned_a(key, 32 * warp + 16 * m, k);
            multiply<4>(state[m], key, 4,
                        [&](uint32_t(&b)[4], int n) { tiles.kept.load_b(b, k, n); });
        }
    }
}

template <typename S>
__device__ __forceinline__ void run_chunks(const StateSpaceChunks &c, const DeltaItem &item,
                                           int head, const ChunkTiles &tiles, ChunkGates *gates) {
    const DeltaArguments &a = c.space.delta;
    const int thread = static_cast<int>(threadIdx.x);
    const int key_head = head / (a.value_heads / a.key_heads);
    WarpState state = {};
    if (item.from >= 0) {
        const S *from = state_of<S>(a, item.from, head);
        for_each_pair(state, [&](float *x, int key, int piece, int column) {
            const float2 two = load_state_pair(from + key * kValues + piece * 8 + column);
            x[0] = two.x, x[1] = two.y;
        });
    }
    share_state(tiles, state);
    for (int first = 0; first < item.token_count; first += kTokens) {
        const Place place(item, first);
        const Element *row = static_cast<const Element *>(c.mixed) + place.token * a.channels();
        const Element *queries = row + key_head * kKeys;
        const auto stride = static_cast<int64_t>(a.channels());
        tiles.queries.copy<kThreads>(thread, queries, stride, place.count);
        tiles.keys.copy<kThreads>(thread, queries + a.keys_size(), stride, place.count);
        tiles.values.copy<kThreads>(thread, row + 2 * a.keys_size() + head * kValues, stride,
                                    place.count);
        copy_async_commit();
        if (thread < 32) make_gates(c.space, place, head, gates);
        copy_async_wait<0>();
        __syncthreads();
        scale_values(tiles, *gates);
        float results[8][4] = {};
        make_results(tiles, *gates, results);
        store_results(c.space, place, head, tiles, results);
        __syncthreads(); // kept is there, and the old state has been read
        advance(tiles, *gates, state);
        share_state(tiles, state);
        __syncthreads();
    }
    S *to = state_of<S>(a, item.state, head);
    for_each_pair(state, [&](const float *x, int key, int piece, int column) {
        store_state_pair(to + key * kValues + piece * 8 + column, x[0], x[1]);
    });
}

template <typename S> __global__ void __launch_bounds__(kThreads, 2)
    state_space_chunks(const __grid_constant__ StateSpaceChunks c) {
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ ChunkGates gates;
    const DeltaArguments &a = c.space.delta;
    const ChunkTiles tiles(shared_address(memory));
    const DeltaLevel level = *a.level;
    for (int i = level.chunked + static_cast<int>(blockIdx.y); i < level.end; i += gridDim.y) {
        run_chunks<S>(c, a.items[i], static_cast<int>(blockIdx.x), tiles, &gates);
    }
}

// ---- Before it --------------------------------------------------------------------------------------

constexpr int kWarpTokens = kTokens / kWarps, kBatch = 8; // kBatch: that are loaded together

// A warp has 128 channels, a lane four of them, of 16 tokens of a chunk.
__device__ __forceinline__ void mix_tokens(const StateSpaceChunks &c, const Place &place,
                                           int channel, int begin, int end) {
    const DeltaArguments &a = c.space.delta;
    Convolution<4> convolution(
        [&](int e) { return reinterpret_cast<const float4 *>(a.convolution)[channel + e]; });
    float4 bias = {};
    if (c.space.bias != nullptr) bias = *reinterpret_cast<const float4 *>(c.space.bias + channel);
    const auto load = [&](const Element *row) {
        return *reinterpret_cast<const uint2 *>(row + channel);
    };
    const auto see = [&](const uint2 &raw, bool valid) {
        const float2 low = wide(raw.x), high = wide(raw.y);
        const float x[4] = {valid ? low.x : 0.0f, valid ? low.y : 0.0f, valid ? high.x : 0.0f,
                            valid ? high.y : 0.0f};
        convolution.see(x);
    };
    uint2 before[kRing];
#pragma unroll
    for (int w = 1; w < kRing; ++w) {
        before[w] = load(seen_row<Element>(a, place.item, place.first + begin, kRing - w));
    }
#pragma unroll
    for (int w = 1; w < kRing; ++w) {
        see(before[w], place.item.position + place.first + begin >= kRing - w);
    }
    const auto mixed = [&](int e, float of) {
#pragma unroll
        for (int w = 0; w < kRing; ++w) of += convolution.seen[w][e] * convolution.weights[e][w];
        return silu_approximate(of);
    };
#pragma unroll 1
    for (int t = begin; t < end; t += kBatch) {
        uint2 batch[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
            batch[i] = load(projected_of<Element>(a, place.token + min(t + i, end - 1)));
        }
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
            if (t + i >= end) break;
            see(batch[i], true);
            const uint2 raw = {pack(mixed(0, bias.x), mixed(1, bias.y), Element()),
                               pack(mixed(2, bias.z), mixed(3, bias.w), Element())};
            *reinterpret_cast<uint2 *>(static_cast<Element *>(c.mixed) +
                                       (place.token + t + i) * a.channels() + channel) = raw;
        }
    }
}

__global__ void __launch_bounds__(kThreads)
    state_space_inputs(const __grid_constant__ StateSpaceChunks c) {
    const DeltaArguments &a = c.space.delta;
    const DeltaLevel level = *a.level;
    const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
    const int channel = (static_cast<int>(blockIdx.y) * 32 + lane) * 4;
    if (channel >= a.channels()) return;
    for (int i = level.chunk_begin + static_cast<int>(blockIdx.x); i < level.chunk_end;
         i += gridDim.x) {
        const DeltaChunk chunk = c.chunks[i];
        const Place place(a.items[chunk.item], chunk.first);
        const int begin = warp * kWarpTokens, end = min(begin + kWarpTokens, place.count);
        if (begin < end) mix_tokens(c, place, channel, begin, end);
    }
}

} // namespace
} // namespace space

bool takes_state_space_chunks(DType element, int32_t key_dim, int32_t value_dim) {
    return element == DType::bf16 && key_dim == space::kKeys && value_dim == space::kValues;
}

cudaError_t launch_state_space_chunks(const StateSpaceChunks &c, cudaStream_t stream) {
    const DeltaArguments &a = c.space.delta;
    if (c.most_chunks == 0 || c.items == 0) return cudaSuccess;
    if (!takes_state_space_chunks(a.element, a.key_dim, a.value_dim) || a.key_heads < 1 ||
        a.value_heads % a.key_heads != 0) {
        return cudaErrorInvalidValue;
    }
    const dim3 inputs(static_cast<unsigned>(c.most_chunks),
                      static_cast<unsigned>((a.channels() + 127) / 128));
    space::state_space_inputs<<<inputs, space::kThreads, 0, stream>>>(c);
    if (const cudaError_t code = cudaGetLastError(); code != cudaSuccess) return code;
    const dim3 grid(static_cast<unsigned>(a.value_heads),
                    static_cast<unsigned>(std::min(c.items, 65535)));
    return with_state(a.state, [&](auto state) {
        return launch_with_shared(space::state_space_chunks<decltype(state)>, grid, space::kThreads,
                                  space::ChunkTiles::kBytes, stream, c);
    });
}

} // namespace batchllm::cuda
