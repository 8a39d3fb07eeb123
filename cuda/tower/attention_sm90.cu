// O = softmax(scale Q K^T) V over ranges of patches, sm_90a: wgmma, keys and values by TMA.
//
// An item is a block of 192 query rows and a head: 64 rows for each of three warpgroups. A CTA draws item after item. In a fourth
// warpgroup one thread fetches tiles of keys, as many keys as a thread of three has registers for, and three warps fetch and turn
// the next item's queries. As in attention/sm90_wide.cuh, S = Q K^T of tile j + 1 and O += P V of tile j are in flight together,
// and a warpgroup's softmax overlaps with the others' products.
//
// A head is 64 elements, as wgmma's operands with the 128-byte swizzle, and, if it is longer, a tail of 8 or 16 in rows of 16 with
// the 32-byte swizzle. Beyond the head these rows have what comes next in memory: queries are zero there. Keys beyond the range are
// other patches, or zeros; their weights are zero.
#include "tower/attention.h"

#include <algorithm>

#include <cuda.h>

#include "attention/hopper.cuh"
#include "attention/sm90_softmax.cuh"
#include "device/tensor_map.h"
#include "device/tma.cuh"
#include "tower/turn.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kGroups = 3, kRows = kGroups * 64;
constexpr int kConsumers = kGroups * 128, kThreads = kConsumers + 128;
constexpr int kHead = 64, kTailRow = 16; // elements
constexpr int kStages = 3;               // of keys, and of values
constexpr int kItems = 2;                // whose queries there is room for
constexpr int kLoaders = 96;             // threads
constexpr int kHeadQueries = kRows * kHead * 2, kTailQueries = kRows * kTailRow * 2;
// Named barriers: of the loaders; one per warpgroup; one per item that there is room for. Threads that wait at one issue nothing,
// and these wait most of the time: at the card's limit of power, what they would spend is missing elsewhere.
constexpr int kLoading = 1, kTurn = 2, kFree = kTurn + kGroups;

template <int Tail> struct Shape {
    static constexpr int kKeys = Tail == 16 ? 112 : 128;
    static constexpr int kHeadBytes = kKeys * kHead * 2;
    static constexpr int kSentBytes = kHeadBytes + (Tail > 0 ? kKeys * kTailRow * 2 : 0);
    static constexpr int kTileBytes = (kSentBytes + 1023) / 1024 * 1024; // as swizzles want it
    static constexpr int kQueries =
        2 * kStages * kTileBytes; // where an item's are: head, then tail
    static constexpr int kItemBytes = kHeadQueries + (Tail > 0 ? kTailQueries : 0);
    static constexpr int kBarriers =
        kQueries + kItems * kItemBytes; // full, empty of keys; of values
    static constexpr int kItemBarriers = kBarriers + 4 * kStages * 8; // full
    static constexpr int kDrawn = kItemBarriers + kItems * 8;         // Item [kItems]
    static constexpr int kBytes = kDrawn + kItems * 16 + 1024;
};

struct Item {
    TowerBlock block;
    int head; // -1: there are no more
};

// As Operand, of rows of 32 bytes with the 32-byte swizzle: 16-byte chunk c of row r is at c ^ (r / 4 % 2). Groups of 8 rows are
// 256 bytes.
struct TailOperand {
    uint32_t low;
    __device__ __forceinline__ explicit TailOperand(uint32_t address)
        : low(__shfl_sync(~0u, (address & 0x3ffff) >> 4 | 1u << 16, 0)) {}
    __device__ __forceinline__ uint64_t at(uint32_t bytes) const {
        return uint64_t(256 >> 4 | 3u << 30) << 32 | (low + (bytes >> 4));
    }
};

#define WGMMA_TAIL(TYPE, CPP)                                                                      \
    __device__ __forceinline__ void wgmma_tail(float(&d)[8], const uint32_t *a, uint64_t b, CPP) { \
        asm volatile("wgmma.mma_async.sync.aligned.m64n16k16.f32." TYPE "." TYPE " {" LIST8        \
                     "}, {%8,%9,%10,%11}, %12, 1, 1, 1, 1;"                                        \
                     : R8(d, 0)                                                                    \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                        \
    }                                                                                              \
    __device__ __forceinline__ void wgmma_tail(float(&d)[4], const uint32_t *a, uint64_t b, CPP) { \
        asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32." TYPE "." TYPE " {%0,%1,%2,%3}, " \
                     "{%4,%5,%6,%7}, %8, 1, 1, 1, 1;"                                              \
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                              \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                        \
    }
WGMMA_TAIL("bf16", __nv_bfloat16)
WGMMA_TAIL("f16", __half)
#undef WGMMA_TAIL

// A position in a ring; its barriers are elsewhere.
template <int Slots> struct RingPlace {
    int slot = 0;
    uint32_t phase = 0;
    __device__ __forceinline__ void advance() {
        if (++slot == Slots) slot = 0, phase ^= 1;
    }
};
using Place = RingPlace<kStages>;    // of tiles
using ItemPlace = RingPlace<kItems>; // of items, with their queries

// Keys' tiles come first, values' after them; so do their barriers, full ones before empty ones.
template <int Tail> struct Tiles {
    uint32_t base;
    __device__ __forceinline__ uint32_t tile(int kind, const Place &at) const {
        return base + (kind * kStages + at.slot) * Shape<Tail>::kTileBytes;
    }
    __device__ __forceinline__ uint32_t full(int kind, const Place &at) const {
        return base + Shape<Tail>::kBarriers + (kind * 2 * kStages + at.slot) * 8;
    }
    __device__ __forceinline__ uint32_t empty(int kind, const Place &at) const {
        return full(kind, at) + kStages * 8;
    }
    __device__ __forceinline__ void wait(int kind, const Place &at) const {
        barrier_wait(full(kind, at), at.phase);
    }
    // One thread of each warp.
    __device__ __forceinline__ void release(int kind, const Place &at) const {
        if (threadIdx.x % 32 == 0) barrier_arrive(empty(kind, at));
    }
};

// Drawn by the loaders, read by all others.
template <int Tail> struct Items {
    unsigned char *shared;
    __device__ __forceinline__ Item &item(const ItemPlace &at) const {
        return reinterpret_cast<Item *>(shared + Shape<Tail>::kDrawn)[at.slot];
    }
    __device__ __forceinline__ unsigned char *queries(const ItemPlace &at) const {
        return shared + Shape<Tail>::kQueries + at.slot * Shape<Tail>::kItemBytes;
    }
    __device__ __forceinline__ uint32_t full(const ItemPlace &at) const {
        return shared_address(shared) + Shape<Tail>::kItemBarriers + at.slot * 8;
    }
    __device__ __forceinline__ Item wait(const ItemPlace &at) const {
        barrier_wait(full(at), at.phase);
        return item(at);
    }
    // By all consumers: what the item had is not read any more. (Before tiles that they wait for, it was by who fetches these.)
    __device__ __forceinline__ void release(const ItemPlace &at) const {
        named_barrier_arrive(kFree + at.slot, kConsumers + kLoaders);
    }
    // By all loaders, from the ring's second turn on.
    __device__ __forceinline__ void wait_free(const ItemPlace &at) const {
        named_barrier(kFree + at.slot, kConsumers + kLoaders);
    }
};

template <int Tail> __device__ __forceinline__ int tiles_of(const TowerBlock &block) {
    constexpr int kKeys = Shape<Tail>::kKeys;
    return (block.end - block.begin + kKeys - 1) / kKeys;
}

template <int Tail> __device__ void fetch(const TowerAttentionArguments &a,
                                          const CUtensorMap &head_map, const CUtensorMap &tail_map,
                                          const Tiles<Tail> &tiles, const Items<Tail> &items) {
    const int width = a.heads * (kHead + Tail);
    Place at;
    for (ItemPlace now;; now.advance()) {
        const Item item = items.wait(now);
        if (item.head < 0) return;
        const int count = tiles_of<Tail>(item.block), column = item.head * (kHead + Tail);
        for (int tile = 0; tile < count; ++tile, at.advance()) {
            for (int kind = 0; kind < 2; ++kind) {
                const uint32_t to = tiles.tile(kind, at), full = tiles.full(kind, at);
                const int row = item.block.begin + tile * Shape<Tail>::kKeys,
                          first = (kind + 1) * width + column;
                barrier_wait(tiles.empty(kind, at), at.phase ^ 1);
                barrier_expect(full, Shape<Tail>::kSentBytes);
                load_box(to, head_map, first, row, full);
                if constexpr (Tail > 0)
                    load_box(to + Shape<Tail>::kHeadBytes, tail_map, first + kHead, row, full);
            }
        }
    }
}

// CTAs draw until there are no more, each once in vain; the last of these draws makes `drawn` zero for the next launch.
__device__ __forceinline__ Item draw(const TowerAttentionArguments &a, int32_t *drawn) {
    const int items = a.block_count * a.heads, number = atomicAdd(drawn, 1);
    if (number == items + static_cast<int>(gridDim.x) - 1) *drawn = 0;
    if (number >= items) return {{}, -1};
    return {a.blocks[number % a.block_count], number / a.block_count};
}

// Of a row of queries: where its chunk of eight elements is.
__device__ __forceinline__ int query_chunk(int row, int chunk) {
    return chunk < 8 ? row * 128 + ((chunk ^ row % 8) << 4)
                     : kHeadQueries + row * 32 + (((chunk - 8) ^ row / 4 % 2) << 4);
}

// Zeros beyond the rows of a block and beyond the head.
template <int Tail, typename T> __device__ void
load_queries(const TowerAttentionArguments &a, const TowerQueries &q, const Items<Tail> &items) {
    constexpr int kDims = kHead + Tail, kChunks = kDims / 8, kHalf = kDims / 2;
    constexpr int kQuads = kHalf / kQuad;
    const int loader = static_cast<int>(threadIdx.x) - (kThreads - kLoaders);
    if constexpr (Tail == 8) { // the rest of its rows of 16
        ItemPlace at;
        for (int n = 0; n < kItems; ++n, at.advance()) {
            for (int row = loader; row < kRows; row += kLoaders) {
                *reinterpret_cast<uint4 *>(items.queries(at) + query_chunk(row, kChunks)) = {};
            }
        }
    }
    const int64_t stride = int64_t{3} * a.heads * kDims;
    bool first = true; // turn of the ring
    for (ItemPlace now;; now.advance()) {
        first = first && now.phase == 0;
        if (!first) items.wait_free(now);
        if (loader == 0) items.item(now) = draw(a, q.drawn);
        named_barrier(kLoading, kLoaders);
        const Item item = items.item(now);
        if (item.head < 0) {
            barrier_arrive(items.full(now));
            return;
        }
        unsigned char *queries = items.queries(now);
        const int rows = min(kRows, item.block.end - item.block.first);
        const T *from =
            static_cast<const T *>(a.qkv) + item.block.first * stride + item.head * kDims;
#pragma unroll 1 // there are few registers
        for (int i = loader; i < kRows * kChunks; i += kLoaders) {
            const int row = i / kChunks, chunk = i % kChunks;
            copy_async(shared_address(queries) + query_chunk(row, chunk),
                       row < rows ? from + row * stride + chunk * 8 : from, row < rows);
        }
        copy_async_commit();
        copy_async_wait<0>();
        if (q.bias != nullptr || q.angles != nullptr) {
            named_barrier(kLoading, kLoaders);
            const float *bias = q.bias == nullptr ? nullptr : q.bias + item.head * kDims;
            const float2 *angles =
                q.angles == nullptr ? nullptr : q.angles + int64_t{item.block.first} * kHalf;
#pragma unroll 1
            for (int i = loader; i < rows * kQuads; i += kLoaders) {
                const int row = i / kQuads, e = i % kQuads * kQuad;
                const auto at = [&](int element) {
                    return reinterpret_cast<T *>(queries + query_chunk(row, element / 8)) +
                           element % 8;
                };
                turn4(at(e), at(e + kHalf), bias == nullptr ? nullptr : bias + e, kHalf,
                      angles == nullptr ? nullptr : angles + row * kHalf + e);
            }
        }
        async_proxy_fence();
        barrier_arrive(items.full(now));
    }
}

template <int Tail, typename T>
__device__ __forceinline__ void scores(float (&s)[Shape<Tail>::kKeys / 2], const Operand &q,
                                       const TailOperand &q_tail, uint32_t keys) {
    const Operand k(keys);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kHead / 16; ++step) {
        wgmma_ss(s, q.at(step * 32), k.at(step * 32), step > 0, T());
    }
    if constexpr (Tail > 0)
        wgmma_ss(s, q_tail.at(0), TailOperand(keys + Shape<Tail>::kHeadBytes).at(0), 1, T());
    wgmma_commit();
}

template <int Tail, typename T>
__device__ __forceinline__ void accumulate(float (&o)[kHead / 2],
                                           float (&tail)[Tail > 0 ? Tail / 2 : 4],
                                           const uint32_t *p, uint32_t values) {
    constexpr int kKeys = Shape<Tail>::kKeys;
    const Operand v(values, kKeys * 128);
    const TailOperand v_tail(values + Shape<Tail>::kHeadBytes);
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
        wgmma_rs(o, p + 4 * step, v.at(step * 16 * 128), T());
        if constexpr (Tail > 0) wgmma_tail(tail, p + 4 * step, v_tail.at(step * 16 * 32), T());
    }
    wgmma_commit();
}

template <int Count>
__device__ __forceinline__ void rescale(float (&o)[Count], const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < Count; ++i) o[i] *= factor[i / 2 % 2];
}

// Scores of keys from `left` on become -inf.
template <int Count> __device__ __forceinline__ void hide(float (&s)[Count], int left) {
    const int first = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int i = 0; i < Count; ++i) {
        if (i / 4 * 8 + first + i % 2 >= left) s[i] = -INFINITY;
    }
}

template <typename T, int Count>
__device__ __forceinline__ void write(T *out, const float (&o)[Count], int i, float inverse) {
#pragma unroll
    for (int j = 0; j < Count / 4; ++j) {
        *reinterpret_cast<uint32_t *>(out + j * 8 + static_cast<int>(threadIdx.x) % 4 * 2) =
            pack(o[4 * j + 2 * i] * inverse, o[4 * j + 2 * i + 1] * inverse, T());
    }
}

template <int Tail, typename T> __device__ void
attend_rows(const TowerAttentionArguments &a, const Tiles<Tail> &tiles, const Items<Tail> &items) {
    constexpr int kKeys = Shape<Tail>::kKeys;
    const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
    const int next = (group + 1) % kGroups;
    if (next == 0) named_barrier_arrive(kTurn, 2 * 128); // group 0 is first
    Place key, value;
    for (ItemPlace now;; now.advance()) {
        const Item item = items.wait(now);
        if (item.head < 0) return;
        const TowerBlock block = item.block;
        const int count = __shfl_sync(~0u, tiles_of<Tail>(block), 0);
        const int rows = min(kRows, block.end - block.first), keys = block.end - block.begin;
        const uint32_t queries = shared_address(items.queries(now));
        const Operand q(queries + group * 64 * 128);
        const TailOperand q_tail(queries + kHeadQueries + group * 64 * 32);

        float s[kKeys / 2], o[kHead / 2] = {}, tail[Tail > 0 ? Tail / 2 : 4] = {}, top[2],
                                      factor[2];
        uint32_t p[kKeys / 4];
        sm90::RowSoftmax softmax{a.scale * kLog2e};
        tiles.wait(0, key);
        scores<Tail, T>(s, q, q_tail, tiles.tile(0, key));
        wgmma_wait<0>();
        tiles.release(0, key);
        key.advance();
        if (keys < kKeys) hide(s, keys);
        softmax.grew(s, top);
        softmax.raise(top, factor);
        softmax.exponentials(s, p, T());
        for (int tile = 1; tile < count; ++tile) {
            tiles.wait(0, key);
            tiles.wait(1, value);
            // The warpgroups take turns: one issues its products while the others compute their softmax.
            named_barrier(kTurn + group, 2 * 128);
            scores<Tail, T>(s, q, q_tail, tiles.tile(0, key));
            accumulate<Tail, T>(o, tail, p, tiles.tile(1, value));
            named_barrier_arrive(kTurn + next, 2 * 128);
            wgmma_wait<1>();
            tiles.release(0, key);
            key.advance();
            if (keys - tile * kKeys < kKeys) hide(s, keys - tile * kKeys);
            // In each branch, since ptxas would otherwise move the wait above the maxima.
            if (softmax.grew(s, top)) {
                softmax.raise(top, factor);
                wgmma_wait<0>();
                rescale(o, factor);
                rescale(tail, factor);
            }
            wgmma_wait<0>(); // P's registers are free, for P of this tile
            tiles.release(1, value);
            value.advance();
            softmax.exponentials(s, p, T());
        }
        items.release(now);
        tiles.wait(1, value);
        wgmma_fence();
        accumulate<Tail, T>(o, tail, p, tiles.tile(1, value));
        wgmma_wait<0>();
        tiles.release(1, value);
        value.advance();
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float total = softmax.sum[i];
            total += __shfl_xor_sync(~0u, total, 1);
            total += __shfl_xor_sync(~0u, total, 2);
            const int row = group * 64 + static_cast<int>(threadIdx.x) % 128 / 32 * 16 +
                            static_cast<int>(threadIdx.x) % 32 / 4 + 8 * i;
            if (row >= rows) continue;
            const float inverse = 1 / total;
            T *out = static_cast<T *>(a.out) +
                     (int64_t{block.first + row} * a.heads + item.head) * (kHead + Tail);
            write(out, o, i, inverse);
            if constexpr (Tail > 0) write(out + kHead, tail, i, inverse);
        }
    }
}

template <int Tail, typename T> __global__ void __launch_bounds__(kThreads, 1)
    attend(const __grid_constant__ TowerAttentionArguments a,
           const __grid_constant__ TowerQueries q, const __grid_constant__ CUtensorMap head_map,
           const __grid_constant__ CUtensorMap tail_map) {
    extern __shared__ unsigned char raw[];
    unsigned char *shared = raw + (1024 - shared_address(raw) % 1024) % 1024;
    const Tiles<Tail> tiles{shared_address(shared)};
    const Items<Tail> items{shared};
    if (threadIdx.x == 0) {
        for (int kind = 0; kind < 2; ++kind) {
            for (Place at; at.phase == 0; at.advance()) {
                barrier_init(tiles.full(kind, at), 1);
                barrier_init(tiles.empty(kind, at), kConsumers / 32);
            }
        }
        for (ItemPlace at; at.phase == 0; at.advance()) {
            barrier_init(items.full(at), kLoaders);
        }
        barrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x < kConsumers) {
        registers_more<160>();
        attend_rows<Tail, T>(a, tiles, items);
        return;
    }
    registers_fewer<32>();
    if (threadIdx.x >= kThreads - kLoaders) {
        load_queries<Tail, T>(a, q, items);
    } else if (threadIdx.x == kConsumers) {
        fetch(a, head_map, tail_map, tiles, items);
    }
}

template <int Tail, typename T> cudaError_t launch_shape(const TowerAttentionArguments &a,
                                                         const TowerQueries &q, int64_t patches,
                                                         cudaStream_t stream) {
    const int64_t columns = int64_t{3} * a.heads * a.head_dim;
    CUtensorMap head_map, tail_map;
    cudaError_t code =
        make_tensor_map(a.qkv, a.element, patches, columns, Shape<Tail>::kKeys, &head_map);
    if (code != cudaSuccess) return code;
    code =
        make_narrow_tensor_map(a.qkv, a.element, patches, columns, Shape<Tail>::kKeys, &tail_map);
    if (code != cudaSuccess) return code;
    const auto kernel = attend<Tail, T>;
    constexpr int bytes = Shape<Tail>::kBytes;
    code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (code != cudaSuccess) return code;
    int device = 0, most = 0;
    if ((code = cudaGetDevice(&device)) != cudaSuccess) return code;
    code = cudaDeviceGetAttribute(&most, cudaDevAttrMultiProcessorCount, device);
    if (code != cudaSuccess) return code;
    const int grid = std::min(most, a.block_count * a.heads);
    kernel<<<static_cast<unsigned>(grid), kThreads, bytes, stream>>>(a, q, head_map, tail_map);
    return cudaGetLastError();
}

template <typename T> cudaError_t launch_type(const TowerAttentionArguments &a,
                                              const TowerQueries &q, int64_t patches,
                                              cudaStream_t stream) {
    switch (a.head_dim - kHead) {
    case 0:
        return launch_shape<0, T>(a, q, patches, stream);
    case 8:
        return launch_shape<8, T>(a, q, patches, stream);
    default:
        return launch_shape<16, T>(a, q, patches, stream);
    }
}

} // namespace

int32_t tower_block_rows_sm90() { return kRows; }

bool tower_head_fits_sm90(DType element, int32_t head_dim) {
    return element != DType::f32 && head_dim % 8 == 0 && head_dim >= kHead &&
           head_dim <= kHead + kTailRow;
}

cudaError_t launch_tower_attention_sm90(const TowerAttentionArguments &a, const TowerQueries &q,
                                        int64_t patches, cudaStream_t stream) {
    if (a.block_count == 0) return cudaSuccess;
    if (!tower_head_fits_sm90(a.element, a.head_dim)) return cudaErrorInvalidValue;
    return a.element == DType::bf16 ? launch_type<__nv_bfloat16>(a, q, patches, stream)
                                    : launch_type<__half>(a, q, patches, stream);
}

} // namespace batchllm::cuda
