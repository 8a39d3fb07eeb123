// O = softmax(scale Q K^T) V over ranges of patches, sm_90a: wgmma, keys and values by TMA.
//
// A CTA has a block's 192 query rows, 64 for each of three warpgroups; a fourth warpgroup's first thread fetches tiles of keys: as
// many as a thread of three has registers for. As in attention/sm90_wide.cuh, S = Q K^T of tile j + 1 and O += P V of tile j
// are in flight together, and a warpgroup's softmax overlaps with the others' products.
// Queries turn in shared memory, as they are read.
//
// A head is 64 elements, as wgmma's operands with the 128-byte swizzle, and, if it is longer, a tail of 8 or 16 in rows of 16 with
// the 32-byte swizzle. Beyond the head these rows have what comes next in memory: queries are zero there. Keys beyond the range are
// other patches, or zeros; their weights are zero.
#include "tower/attention.h"

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
constexpr int kHeadQueries = kRows * kHead * 2, kTailQueries = kRows * kTailRow * 2;
constexpr int kGroup = 1, kTurn = kGroup + kGroups; // named barriers, one per warpgroup

template <int Tail> struct Shape {
    static constexpr int kKeys = Tail == 16 ? 112 : 128;
    static constexpr int kHeadBytes = kKeys * kHead * 2;
    static constexpr int kSentBytes = kHeadBytes + (Tail > 0 ? kKeys * kTailRow * 2 : 0);
    static constexpr int kTileBytes = (kSentBytes + 1023) / 1024 * 1024; // as swizzles want it
    static constexpr int kQueries = 2 * kStages * kTileBytes; // where they are: head, then tail
    static constexpr int kBarriers =
        kQueries + kHeadQueries + (Tail > 0 ? kTailQueries : 0); // full, empty of keys; of values
    static constexpr int kBytes = kBarriers + 4 * kStages * 8 + 1024;
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

// A position in a ring of tiles; its barriers are elsewhere.
struct Place {
    int slot = 0;
    uint32_t phase = 0;
    __device__ __forceinline__ void advance() {
        if (++slot == kStages) slot = 0, phase ^= 1;
    }
};

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

template <int Tail> __device__ void fetch(const TowerAttentionArguments &a,
                                          const CUtensorMap &head_map, const CUtensorMap &tail_map,
                                          const Tiles<Tail> &tiles, const TowerBlock &block,
                                          int count) {
    const int width = a.heads * a.head_dim, column = static_cast<int>(blockIdx.y) * a.head_dim;
    Place at;
    for (int tile = 0; tile < count; ++tile, at.advance()) {
        for (int kind = 0; kind < 2; ++kind) {
            const uint32_t to = tiles.tile(kind, at), full = tiles.full(kind, at);
            const int row = block.begin + tile * Shape<Tail>::kKeys,
                      first = (kind + 1) * width + column;
            barrier_wait(tiles.empty(kind, at), at.phase ^ 1);
            barrier_expect(full, Shape<Tail>::kSentBytes);
            load_box(to, head_map, first, row, full);
            if constexpr (Tail > 0)
                load_box(to + Shape<Tail>::kHeadBytes, tail_map, first + kHead, row, full);
        }
    }
}

// Of a row of queries: where its chunk of eight elements is.
__device__ __forceinline__ int query_chunk(int row, int chunk) {
    return chunk < 8 ? row * 128 + ((chunk ^ row % 8) << 4)
                     : kHeadQueries + row * 32 + (((chunk - 8) ^ row / 4 % 2) << 4);
}

// The warpgroup's 64 query rows, turned; zeros beyond `rows` of the block and beyond head_dim.
template <int Tail, typename T>
__device__ __forceinline__ void place_queries(const TowerAttentionArguments &a,
                                              const TowerQueries &q, const TowerBlock &block,
                                              int rows, int group, unsigned char *queries) {
    constexpr int kChunks = (kHead + (Tail > 0 ? kTailRow : 0)) / 8;
    const int64_t width = int64_t{a.heads} * a.head_dim;
    const T *from = static_cast<const T *>(a.qkv) + int64_t{blockIdx.y} * a.head_dim;
    for (int i = static_cast<int>(threadIdx.x) % 128; i < 64 * kChunks; i += 128) {
        const int row = group * 64 + i / kChunks, chunk = i % kChunks;
        uint4 value{};
        if (row < rows && chunk * 8 < a.head_dim) {
            value = *reinterpret_cast<const uint4 *>(from + (block.first + row) * 3 * width +
                                                     chunk * 8);
        }
        *reinterpret_cast<uint4 *>(queries + query_chunk(row, chunk)) = value;
    }
    if (q.bias != nullptr || q.angles != nullptr) {
        constexpr int kHalf = (kHead + Tail) / 2, kQuads = kHalf / kQuad;
        named_barrier(kGroup + group, 128);
        const float *bias = q.bias == nullptr ? nullptr : q.bias + blockIdx.y * (kHead + Tail);
        for (int i = static_cast<int>(threadIdx.x) % 128; i < 64 * kQuads; i += 128) {
            const int row = group * 64 + i / kQuads, e = i % kQuads * kQuad;
            if (row >= rows) break;
            const auto at = [&](int element) {
                return reinterpret_cast<T *>(queries + query_chunk(row, element / 8)) + element % 8;
            };
            turn4(at(e), at(e + kHalf), bias == nullptr ? nullptr : bias + e, kHalf,
                  q.angles == nullptr ? nullptr
                                      : q.angles + int64_t{block.first + row} * kHalf + e);
        }
    }
    async_proxy_fence();
    named_barrier(kGroup + group, 128);
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
__device__ __forceinline__ void write(const TowerAttentionArguments &a, int64_t row, int column,
                                      const float (&o)[Count], int i, float inverse) {
    const int64_t width = int64_t{a.heads} * a.head_dim;
    T *out = static_cast<T *>(a.out) + row * width + int64_t{blockIdx.y} * a.head_dim;
#pragma unroll
    for (int j = 0; j < Count / 4; ++j) {
        const int at = column + j * 8 + static_cast<int>(threadIdx.x) % 4 * 2;
        if (at >= a.head_dim) continue;
        *reinterpret_cast<uint32_t *>(out + at) =
            pack(o[4 * j + 2 * i] * inverse, o[4 * j + 2 * i + 1] * inverse, T());
    }
}

template <int Tail, typename T>
__device__ void attend_rows(const TowerAttentionArguments &a, const TowerQueries &turning,
                            const Tiles<Tail> &tiles, const TowerBlock &block, int count,
                            unsigned char *queries) {
    constexpr int kKeys = Shape<Tail>::kKeys;
    const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
    const int next = (group + 1) % kGroups;
    const int rows = min(kRows, block.end - block.first), keys = block.end - block.begin;
    place_queries<Tail, T>(a, turning, block, rows, group, queries);
    const Operand q(shared_address(queries) + group * 64 * 128);
    const TailOperand q_tail(shared_address(queries) + kHeadQueries + group * 64 * 32);
    if (next == 0) named_barrier_arrive(kTurn, 2 * 128); // group 0 is first

    float s[kKeys / 2], o[kHead / 2] = {}, tail[Tail > 0 ? Tail / 2 : 4] = {}, top[2], factor[2];
    uint32_t p[kKeys / 4];
    sm90::RowSoftmax softmax{a.scale * kLog2e};
    Place key, value;
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
    tiles.wait(1, value);
    wgmma_fence();
    accumulate<Tail, T>(o, tail, p, tiles.tile(1, value));
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        float total = softmax.sum[i];
        total += __shfl_xor_sync(~0u, total, 1);
        total += __shfl_xor_sync(~0u, total, 2);
        const int row = group * 64 + static_cast<int>(threadIdx.x) % 128 / 32 * 16 +
                        static_cast<int>(threadIdx.x) % 32 / 4 + 8 * i;
        if (row >= rows) continue;
        const float inverse = 1 / total;
        write<T>(a, block.first + row, 0, o, i, inverse);
        if constexpr (Tail > 0) write<T>(a, block.first + row, kHead, tail, i, inverse);
    }
}

template <int Tail, typename T> __global__ void __launch_bounds__(kThreads, 1)
    attend(const __grid_constant__ TowerAttentionArguments a,
           const __grid_constant__ TowerQueries q, const __grid_constant__ CUtensorMap head_map,
           const __grid_constant__ CUtensorMap tail_map) {
    extern __shared__ unsigned char raw[];
    unsigned char *shared = raw + (1024 - shared_address(raw) % 1024) % 1024;
    const Tiles<Tail> tiles{shared_address(shared)};
    if (threadIdx.x == 0) {
        for (int kind = 0; kind < 2; ++kind) {
            for (Place at; at.slot < kStages; ++at.slot) {
                barrier_init(tiles.full(kind, at), 1);
                barrier_init(tiles.empty(kind, at), kConsumers / 32);
            }
        }
        barrier_init_fence();
    }
    __syncthreads();
    const TowerBlock block = a.blocks[blockIdx.x];
    constexpr int kKeys = Shape<Tail>::kKeys;
    const int count = __shfl_sync(~0u, (block.end - block.begin + kKeys - 1) / kKeys, 0);
    if (threadIdx.x >= kConsumers) {
        registers_fewer<32>();
        if (threadIdx.x == kConsumers) fetch(a, head_map, tail_map, tiles, block, count);
        return;
    }
    registers_more<160>();
    attend_rows<Tail, T>(a, q, tiles, block, count, shared + Shape<Tail>::kQueries);
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
    const dim3 grid(static_cast<unsigned>(a.block_count), static_cast<unsigned>(a.heads));
    kernel<<<grid, kThreads, bytes, stream>>>(a, q, head_map, tail_map);
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
