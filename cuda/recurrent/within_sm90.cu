// Convolution, gates and what of a chunk depends on no state (chunk.h), by wgmma. A block has one chunk, one key head
// and two of its value heads, a warpgroup each; it reads `projected` once, and q and k stay where they are mixed.
//
// Of a warpgroup's 64 rows each warp has 16: of A and P in the accumulators of K K^T and Q K^T, then of T, which is
// the left operand of T (rate exp(G) k) and T (rate v) from where it is found: the factors go into its columns.
#include "device/launch.cuh"
#include "recurrent/convolve.cuh"
#include "recurrent/inverse_sm90.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kHeads = 2;          // value heads of a block
constexpr int kTiles = 2 + kHeads; // q, k and each v
constexpr int kBefore = kRing - 1; // tokens before the chunk that its convolution sees
constexpr int kPanelBytes = kDeltaChunk * 128;

// A chunk's rows of a head as wgmma reads them: two panels of 64 columns (Operand in attention/hopper.cuh).
struct Panels {
    uint32_t base;

    __device__ __forceinline__ uint32_t at(int row, int piece) const {
        return base + piece / 8 * kPanelBytes + row * 128 + ((piece % 8 ^ row % 8) << 4);
    }
};

struct GroupShared {
    float sums[kDeltaChunk];      // G
    float rates[kDeltaChunk];     // 0 beyond the chunk's tokens
    float key_rates[kDeltaChunk]; // rate exp(G)
    InverseShared inverse;
};

struct WithinShared {
    alignas(1024) unsigned char tiles[kTiles][2 * kPanelBytes];
    alignas(128) unsigned char before[kTiles][kBefore][kHeadDim * 2];
    alignas(128) float4 convolution[kTiles][kHeadDim]; // see weights_of
    GroupShared groups[kHeads];
};
static_assert(2 * (sizeof(WithinShared) + 1024) <= 228 * 1024, "two blocks an SM");

// What a block has of the heads.
struct HeadPlace {
    int key_head, first, count; // value heads [first, first + count)
    bool foremost;              // of the blocks with this key head

    // at: of a block's heads the first, of those with the key head
    __device__ __forceinline__ HeadPlace(const DeltaArguments &a, int key_head, int at)
        : key_head(key_head), foremost(at == 0) {
        const int ratio = a.value_heads / a.key_heads;
        first = key_head * ratio + at;
        count = min(kHeads, ratio - at);
    }
    // The first of a tile; where there is no second value head, the first one's again.
    __device__ __forceinline__ int channel(const DeltaArguments &a, int tile) const {
        if (tile < 2) return tile * a.keys_size() + key_head * kHeadDim;
        return 2 * a.keys_size() + (first + min(tile - 2, count - 1)) * kHeadDim;
    }
};

// threadIdx.x, read anew: what follows from it is not kept in registers from part to part.
__device__ __forceinline__ int thread_anew() {
    unsigned thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return static_cast<int>(thread % kThreads); // its range is known then
}

// ---- Inputs ----

// Where a tile's convolution is: eight neighbouring lanes read different banks.
__device__ __forceinline__ float4 *weights_of(WithinShared *shared, int tile, int piece, int e) {
    return shared->convolution[tile] + piece * 8 + (e ^ piece % 8);
}

// Asynchronously, as projected: zeros from the chunk's end on and before the sequence's beginning. First what q and k
// need, and all weights; then v.
template <typename T>
__device__ __forceinline__ void copy_inputs(const DeltaArguments &a, const ChunkPlace &place,
                                            const HeadPlace &heads, WithinShared *shared) {
    constexpr int kRows = kThreads / 16; // at a time, 16 bytes a thread
    const int thread = thread_anew(), row = thread / 16, piece = thread % 16;
    if (thread < kTiles * kBefore * 16) {
        const int tile = row / kBefore, w = row % kBefore, back = kBefore - w;
        copy_async(shared_address(shared->before[tile][w] + piece * 16),
                   seen_row<T>(a, place.item, place.first, back) + heads.channel(a, tile) +
                       piece * 8,
                   place.item.position + place.first >= back);
    }
#pragma unroll
    for (int i = 0; i < kTiles * kHeadDim; i += kThreads) {
        const int tile = (i + thread) / kHeadDim, at = thread % kHeadDim;
        copy_async(shared_address(weights_of(shared, tile, at / 8, at % 8)),
                   a.convolution + (heads.channel(a, tile) + at) * kRing, true);
    }
    const T *from = projected_of<T>(a, place.token + row) + piece * 8;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
        const T *channels = from + heads.channel(a, tile);
        const Panels to{shared_address(shared->tiles[tile])};
#pragma unroll
        for (int t = 0; t < kDeltaChunk; t += kRows) {
            copy_async(to.at(t + row, piece), channels + t * a.stride, t + row < place.count);
        }
        if (tile % 2 == 1) copy_async_commit();
    }
}

// G and the rates of a value head. One warp, a lane two tokens.
template <typename T> __device__ __forceinline__ void
make_gates(const ChunkArguments &c, const ChunkPlace &place, int head, GroupShared *shared) {
    const int first = static_cast<int>(threadIdx.x % 32) * 2;
    float2 gates[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
        gates[e] = make_float2(0, 0);
        if (first + e >= place.count) continue;
        const DeltaGates of = gates_of<T>(c.delta, place.token + first + e, head);
        gates[e] = make_float2(of.log_decay * kLog2e, of.rate);
    }
    const float2 sums = sum_gates(c, place, head, gates);
    *reinterpret_cast<float2 *>(shared->sums + first) = sums;
    *reinterpret_cast<float2 *>(shared->rates + first) = make_float2(gates[0].y, gates[1].y);
    *reinterpret_cast<float2 *>(shared->key_rates + first) =
        make_float2(gates[0].y * exp2_approximate(sums.x), gates[1].y * exp2_approximate(sums.y));
}

// Two tiles in place: q and k, which go to global memory too, or v. Four warps a tile, half a warp eight tokens.
template <typename T, bool kKeys>
__device__ __forceinline__ void mix_tiles(const ChunkArguments &c, const ChunkPlace &place,
                                          const HeadPlace &heads, WithinShared *shared) {
    const DeltaArguments &a = c.delta;
    const int thread = thread_anew(), warp = thread / 32, lane = thread % 32;
    const int tile = warp / 4 + (kKeys ? 0 : 2), piece = lane % 16;
    const int first = warp % 4 * 16, begin = first + lane / 16 * 8;
    const Panels rows{shared_address(shared->tiles[tile])};
    Convolution<8> convolution([&](int e) { return *weights_of(shared, tile, piece, e); });
    const auto see = [&](const uint4 &raw) {
        float x[8];
        widen(Packed8<T>{raw}, x);
        convolution.see(x);
    };
#pragma unroll
    for (int w = 0; w < kBefore; ++w) {
        see(load_shared(begin == 0
                            ? shared_address(shared->before[tile][w] + piece * 16)
                            : rows.at((begin + kDeltaChunk - kBefore + w) % kDeltaChunk, piece)));
    }
    __syncthreads(); // before another half of a warp mixes those
    if (first >= place.count) return;
    T *to = mixed_of<T>(c, place.token + begin) + heads.channel(a, tile) + piece * 8;
    const int stored = kKeys && heads.foremost ? place.count - begin : 0;
    constexpr int kBatch = 2; // tokens that are loaded together
#pragma unroll 1
    for (int t = 0; t < 8; t += kBatch) {
        uint4 raw[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) raw[i] = load_shared(rows.at(begin + t + i, piece));
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
            see(raw[i]);
            float x[8], squares = convolution.mix(x);
            if (kKeys) {
#pragma unroll
                for (int offset = 8; offset > 0; offset /= 2) {
                    squares += __shfl_xor_sync(~0u, squares, offset);
                }
                const float scale = unit_scale(squares, kHeadDim, tile == 0);
#pragma unroll
                for (float &e : x) e *= scale;
            }
            const uint4 packed{pack(x[0], x[1], T()), pack(x[2], x[3], T()), pack(x[4], x[5], T()),
                               pack(x[6], x[7], T())};
            store_shared(rows.at(begin + t + i, piece), packed);
            if (t + i < stored) __stcg(reinterpret_cast<uint4 *>(to), packed);
            to += a.channels();
        }
    }
}

// ---- A, P ----

// K K^T to -A, Q K^T to P.
__device__ __forceinline__ void apply_gates(const GroupShared &shared, int warp, SquareSums &across,
                                            SquareSums &weights) {
    const int lane = thread_anew() % 32, first = warp * kSquare + lane / 4;
    const float sums[2] = {shared.sums[first], shared.sums[first + 8]};
    const float rates[2] = {-shared.rates[first], -shared.rates[first + 8]};
#pragma unroll
    for (int n = 0; n < kSquares; ++n) {
        if (n > warp) { // later tokens
#pragma unroll
            for (float &x : weights[n]) x = 0;
            continue;
        }
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            const int i = first + e / 2 % 2 * 8, j = n * kSquare + e / 4 * 8 + lane % 4 * 2 + e % 2;
            const float decay =
                exp2_approximate(j <= i ? sums[e / 2 % 2] - shared.sums[j] : -INFINITY);
            const float product = rates[e / 2 % 2] * decay * across[n][e];
            weights[n][e] *= decay;
            across[n][e] = j < i ? product : 0.0f;
        }
    }
}

// ---- W, U ----

// A warp's 16 rows by way of those of `panels` from `row` on, whole rows at a time; out: where the first belongs, of
// which `count` are there.
template <typename T, int kColumns, int kSums>
__device__ __forceinline__ void store_rows(const float (&sums)[kSums], const Panels &panels,
                                           int row, int count, T *out, int stride) {
    static_assert(kSums == kColumns / 2);
    const int lane = thread_anew() % 32;
#pragma unroll
    for (int k = 0; k < kColumns / 16; ++k) {
        uint32_t r[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            r[i] = pack(sums[8 * k + 2 * i], sums[8 * k + 2 * i + 1], T());
        }
        store_matrix(panels.at(row + lane % 16, 2 * k + lane / 16), r);
    }
    __syncwarp();
    constexpr int kLanes = kColumns / 8, kRows = 32 / kLanes; // that store a row; at a time
    const int begin = lane / kLanes, piece = lane % kLanes;
    out += begin * stride + piece * 8;
#pragma unroll
    for (int r = 0; r < kSquare; r += kRows) {
        const uint4 packed = load_shared(panels.at(row + begin + r, piece));
        if (begin + r < count) __stcg(reinterpret_cast<uint4 *>(out + r * stride), packed);
    }
    __syncwarp();
}

// T's columns times `scales`, as A.
template <typename T> __device__ __forceinline__ void
scale_columns(const SquareSums &inverse, const float *scales, uint32_t (&a)[kSquares][4]) {
    const int lane = thread_anew() % 32;
#pragma unroll
    for (int k = 0; k < kSquares; ++k) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 by =
                *reinterpret_cast<const float2 *>(scales + k * kSquare + i / 2 * 8 + lane % 4 * 2);
            a[k][i] = pack(inverse[k][2 * i] * by.x, inverse[k][2 * i + 1] * by.y, T());
        }
    }
}

// 64 rows: a times the panels.
template <typename T> __device__ __forceinline__ void
multiply_panels(const uint32_t (&a)[kSquares][4], const Panels &panels, float (&sums)[64]) {
    const Operand right(panels.base, kPanelBytes);
#pragma unroll
    for (float &x : sums) x = 0;
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kSquares; ++k) wgmma_rs(sums, a[k], right.at(k * kSquare * 128), T());
    wgmma_commit();
    wgmma_wait<0>();
}

// A warpgroup's value head.
template <typename T> __device__ __forceinline__ void within_head(const ChunkArguments &c,
                                                                  const ChunkPlace &place, int head,
                                                                  int group, WithinShared *all) {
    const DeltaArguments &a = c.delta;
    GroupShared &shared = all->groups[group];
    const int warp = static_cast<int>(threadIdx.x % kGroup / 32);
    const Panels queries{shared_address(all->tiles[0])}, keys{shared_address(all->tiles[1])},
        values{shared_address(all->tiles[2 + group])};
    const int count = place.count - warp * kSquare; // rows of the warp that are there
    const int64_t row = place.token + warp * kSquare;
    uint32_t left[kSquares][4], for_w[kSquares][4];
    {
        float across[32], weights[32];
        const Operand q(queries.base), k(keys.base);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < kHeadDim / 16; ++i) {
            const uint32_t at = i / 4 * kPanelBytes + i % 4 * 32;
            wgmma_ss(weights, q.at(at), k.at(at), i > 0, T());
            wgmma_ss(across, k.at(at), k.at(at), i > 0, T());
        }
        wgmma_commit();
        wgmma_wait<0>();
        auto &squares = reinterpret_cast<SquareSums &>(across);
        apply_gates(shared, warp, squares, reinterpret_cast<SquareSums &>(weights));
        store_rows<T, kDeltaChunk>(
            weights, Panels{shared_address(shared.inverse.staging[warp])}, 0, count,
            static_cast<T *>(c.p) + (row * a.value_heads + head) * kDeltaChunk,
            a.value_heads * kDeltaChunk);
        SquareSums inverse;
        invert(squares, group, warp, &shared.inverse, inverse);
        scale_columns<T>(inverse, shared.rates, left);
        scale_columns<T>(inverse, shared.key_rates, for_w);
    }
    T *out = mixed_of<T>(c, row) + 2 * a.keys_size() + head * kHeadDim;
    int stride = a.channels();
#pragma unroll 1
    for (int product = 0; product < 2; ++product) { // U, then W
        float sums[64];
        multiply_panels<T>(left, product == 0 ? values : keys, sums);
        named_barrier(1 + group, kGroup); // v is no longer read
        store_rows<T, kHeadDim>(sums, values, warp * kSquare, count, out, stride);
#pragma unroll
        for (int i = 0; i < 16; ++i) left[i / 4][i % 4] = for_w[i / 4][i % 4];
        stride = a.value_heads * kHeadDim;
        out = static_cast<T *>(c.w) + (row * a.value_heads + head) * kHeadDim;
    }
}

template <typename T> __global__ void __launch_bounds__(kThreads, 2)
    within_chunks(const __grid_constant__ ChunkArguments c) {
    extern __shared__ __align__(1024) unsigned char memory[];
    auto *shared = reinterpret_cast<WithinShared *>(memory);
    const DeltaArguments &a = c.delta;
    const DeltaLevel &level = *a.level;
    const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kGroup, 0);
    for (int i = level.chunk_begin + static_cast<int>(blockIdx.x); i < level.chunk_end;
         i += static_cast<int>(gridDim.x)) {
        int key_head = static_cast<int>(blockIdx.y);
        asm volatile("" : "+r"(key_head)); // what follows from it is not kept all the time
        const HeadPlace heads(a, key_head, static_cast<int>(blockIdx.z) * kHeads);
        const int head = heads.first + group;
        const bool there = group < heads.count;
        const ChunkPlace place(c, c.chunks[i]);
        copy_inputs<T>(a, place, heads, shared);
        if (there && threadIdx.x % kGroup < 32) {
            make_gates<T>(c, place, head, &shared->groups[group]);
        }
        copy_async_wait<1>();
        __syncthreads();
        mix_tiles<T, true>(c, place, heads, shared);
        copy_async_wait<0>();
        __syncthreads();
        mix_tiles<T, false>(c, place, heads, shared);
        async_proxy_fence();
        __syncthreads();
        if (there) within_head<T>(c, place, head, group, shared);
        __syncthreads(); // before the next chunk's rows come
    }
}

} // namespace

cudaError_t launch_within_sm90(const ChunkArguments &a, cudaStream_t stream) {
    const int ratio = a.delta.value_heads / a.delta.key_heads;
    const dim3 grid(static_cast<unsigned>(a.most_chunks), static_cast<unsigned>(a.delta.key_heads),
                    static_cast<unsigned>((ratio + kHeads - 1) / kHeads));
    return with_half(a.delta.element, [&](auto t) {
        return launch_with_shared(within_chunks<decltype(t)>, grid, kThreads,
                                  static_cast<int>(sizeof(WithinShared)), stream, a);
    });
}

} // namespace batchllm::cuda
