// What a block of within_sm90.cu has of a chunk: inputs are brought to shared memory, and q, k, v and gates are made
// of them there.
#pragma once

#include "recurrent/convolve.cuh"
#include "recurrent/inverse_sm90.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kHeads = 2;          // value heads of a block
constexpr int kTiles = 2 + kHeads; // q, k and each v
constexpr int kBefore = kRing - 1; // tokens before the chunk that its convolution sees
constexpr int kPanelBytes = kStateChunk * 128;

// A chunk's rows of a head as wgmma reads them: two panels of 64 columns (Operand in attention/hopper.cuh).
struct Panels {
    uint32_t base;

    __device__ __forceinline__ uint32_t at(int row, int piece) const {
        return base + piece / 8 * kPanelBytes + row * 128 + ((piece % 8 ^ row % 8) << 4);
    }
};

struct GroupShared {
    float sums[kStateChunk];      // G
    float rates[kStateChunk];     // 0 beyond the chunk's tokens
    float key_rates[kStateChunk]; // rate exp(G)
    InverseShared inverse;
    alignas(128) unsigned char staging[kSquares][kSquare * 128]; // a warp's own
};

// Blocks' worth of value heads that a key head has.
__host__ __device__ inline int parts_of(const DeltaArguments &a) {
    return (a.value_heads / a.key_heads + kHeads - 1) / kHeads;
}

// The heads of a block.
struct HeadPlace {
    int key_head, first, count; // value heads [first, first + count)
    bool foremost;              // of the blocks with this key head

    // at: the block's first value head, counted among those of the key head
    __device__ __forceinline__ HeadPlace(const DeltaArguments &a, int key_head, int at)
        : key_head(key_head), foremost(at == 0) {
        const int ratio = a.value_heads / a.key_heads;
        first = key_head * ratio + at;
        count = min(kHeads, ratio - at);
    }
    // A tile's first channel; without a second value head its tile is the first one's again.
    __device__ __forceinline__ int channel(const DeltaArguments &a, int tile) const {
        if (tile < 2) return tile * a.keys_size() + key_head * kHeadDim;
        return 2 * a.keys_size() + (first + min(tile - 2, count - 1)) * kHeadDim;
    }
};

// A block's unit of work: a chunk, a key head, and some of its value heads.
struct Work {
    int index; // among the level's
    ChunkPlace place;
    HeadPlace heads;

    __device__ static __forceinline__ int count(const DeltaArguments &a) {
        return (a.level->chunk_end - a.level->chunk_begin) * a.key_heads * parts_of(a);
    }
    __device__ __forceinline__ Work(const ChunkArguments &c, int index)
        : Work(c, index, c.delta.key_heads * parts_of(c.delta)) {}
    __device__ __forceinline__ Work(const ChunkArguments &c, int index, int each) // of a chunk
        : index(index), place(c, c.chunks[c.delta.level->chunk_begin + index / each]),
          heads(c.delta, index % each / parts_of(c.delta), index % parts_of(c.delta) * kHeads) {}
};

struct WithinShared {
    alignas(1024) unsigned char tiles[kTiles][2 * kPanelBytes];
    alignas(128) unsigned char before[kTiles][kBefore][kHeadDim * 2];
    alignas(128) float4 convolution[kTiles][kHeadDim]; // see weights_of
    GroupShared groups[kHeads];
    Work works[2]; // this one and the next, in turn
    bool more;     // whether there is a next one
};
static_assert(2 * (sizeof(WithinShared) + 1024) <= 228 * 1024, "two blocks an SM");

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

// Asynchronously, as projected: zeros from the chunk's end on and before the sequence's beginning. A warpgroup brings
// the tiles that it mixes: q or k first, then v.
template <typename T> __device__ __forceinline__ void copy_inputs(const DeltaArguments &a,
                                                                  const ChunkPlace &place,
                                                                  const HeadPlace &heads, int group,
                                                                  WithinShared *shared) {
    constexpr int kRows = kGroup / 16; // at a time, 16 bytes a thread
    const int thread = thread_anew() % kGroup, row = thread / 16, piece = thread % 16;
    const T *from = projected_of<T>(a, place.token + row) + piece * 8;
#pragma unroll
    for (int tile = group, i = 0; i < kTiles / 2; ++i, tile += 2) {
        const int channel = heads.channel(a, tile);
        if (row < kBefore) {
            const int back = kBefore - row;
            copy_async(shared_address(shared->before[tile][row] + piece * 16),
                       seen_row<T>(a, place.item, place.first, back) + channel + piece * 8,
                       place.item.position + place.first >= back);
        }
        static_assert(kGroup == kHeadDim);
        copy_async(shared_address(weights_of(shared, tile, thread / 8, thread % 8)),
                   a.convolution + (channel + thread) * kRing, true);
        const Panels to{shared_address(shared->tiles[tile])};
#pragma unroll
        for (int t = 0; t < kStateChunk; t += kRows) {
            copy_async(to.at(t + row, piece), from + channel + t * a.stride, t + row < place.count);
        }
        copy_async_commit();
    }
}

// To L2: the inputs of the block's next chunk.
template <typename T> __device__ __forceinline__ void
prefetch_inputs(const DeltaArguments &a, const ChunkPlace &place, const HeadPlace &heads) {
    static_assert(kThreads == kTiles * kStateChunk);
    const int thread = thread_anew(), tile = thread / kStateChunk, row = thread % kStateChunk;
    if (row >= place.count) return;
    const T *from = projected_of<T>(a, place.token + row), *head = from + heads.channel(a, tile);
    prefetch(head);
    prefetch(head + kHeadDim / 2);
    if (tile == 0) prefetch(from + a.channels() + a.values_size() + heads.first);
    if (tile == 1) prefetch(from + a.channels() + a.values_size() + a.value_heads + heads.first);
}

// What a lane's two tokens' gates are made of; asked for before anything waits.
template <typename T> struct GateInputs {
    T rate[2], step[2];
    float bias, decay;

    __device__ __forceinline__ void load(const DeltaArguments &a, const ChunkPlace &place,
                                         int head) {
        const int first = thread_anew() % 32 * 2;
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const T *b = projected_of<T>(a, place.token + min(first + e, place.count - 1)) +
                         a.channels() + a.values_size() + head;
            rate[e] = b[0], step[e] = b[a.value_heads];
        }
        bias = a.step[head], decay = a.decay[head];
    }
};

// G and the rates of a value head. One warp, a lane two tokens.
template <typename T> __device__ __forceinline__ void make_gates(const ChunkArguments &c,
                                                                 const ChunkPlace &place,
                                                                 const GateInputs<T> &inputs,
                                                                 int head, GroupShared *shared) {
    const int first = thread_anew() % 32 * 2;
    float2 gates[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
        const DeltaGates of =
            gates_of(to_float(inputs.rate[e]), to_float(inputs.step[e]), inputs.bias, inputs.decay);
        const bool valid = first + e < place.count;
        gates[e] = make_float2(valid ? of.log_decay * kLog2e : 0.0f, valid ? of.rate : 0.0f);
    }
    const float2 sums = sum_gates(c, place, head, gates);
    *reinterpret_cast<float2 *>(shared->sums + first) = sums;
    *reinterpret_cast<float2 *>(shared->rates + first) = make_float2(gates[0].y, gates[1].y);
    *reinterpret_cast<float2 *>(shared->key_rates + first) =
        make_float2(gates[0].y * exp2_approximate(sums.x), gates[1].y * exp2_approximate(sums.y));
}

// Four sums over a half warp at once, then each in all of its lanes as a factor for rows of length 1: a lane adds up
// only the token that its bits 3 and 2 say.
__device__ __forceinline__ void unit_scales(float (&squares)[4], bool query) {
    const int lane = thread_anew() % 32;
    const bool high = lane & 8, odd = lane & 4;
    float two[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float given = high ? squares[i] : squares[i + 2];
        two[i] = (high ? squares[i + 2] : squares[i]) + __shfl_xor_sync(~0u, given, 8);
    }
    const float given = odd ? two[0] : two[1];
    float sum = (odd ? two[1] : two[0]) + __shfl_xor_sync(~0u, given, 4);
    sum += __shfl_xor_sync(~0u, sum, 2);
    sum += __shfl_xor_sync(~0u, sum, 1);
    const float scale = unit_scale(sum, kHeadDim, query);
#pragma unroll
    for (int i = 0; i < 4; ++i) squares[i] = __shfl_sync(~0u, scale, i * 4, 16);
}

// A warpgroup's tile in place: q or k, which go to global memory too, or v. Half a warp has eight tokens, or four where
// that is enough; where few warps have any, those of the two groups are on different schedulers.
template <typename T, bool kKeys>
__device__ __forceinline__ void mix_tile(const ChunkArguments &c, const ChunkPlace &place,
                                         const HeadPlace &heads, int group, WithinShared *shared) {
    const DeltaArguments &a = c.delta;
    const int thread = thread_anew() % kGroup, lane = thread % 32, piece = lane % 16;
    const int tile = (kKeys ? 0 : 2) + group, each = place.count > kStateChunk / 2 ? 8 : 4;
    const int first = (group == 0 ? thread / 32 : 3 - thread / 32) * 2 * each;
    const int begin = first + lane / 16 * each;
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
                            : rows.at((begin + kStateChunk - kBefore + w) % kStateChunk, piece)));
    }
    named_barrier(1 + group, kGroup); // before another half of a warp mixes those
    T *to = mixed_of<T>(c, place.token + begin) + heads.channel(a, tile) + piece * 8;
    const int stored = kKeys && heads.foremost ? place.count - begin : 0;
    const int end = min(each, place.count - first);
    // rows.at(begin + t, piece) for t < each, of which begin is a multiple
    const Panels own{rows.base + begin * 128};
    const int own_piece = piece ^ begin % 8;
    constexpr int kBatch = 4; // tokens that are loaded together
#pragma unroll
    for (int t = 0; t < 8; t += kBatch) {
        if (t >= end) break;
        uint4 raw[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) raw[i] = load_shared(own.at(t + i, own_piece));
        float x[kBatch][8], scales[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
            see(raw[i]);
            scales[i] = convolution.mix(x[i]);
        }
        if (kKeys) unit_scales(scales, group == 0);
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
            if (kKeys) {
#pragma unroll
                for (float &e : x[i]) e *= scales[i];
            }
            const uint4 packed{pack(x[i][0], x[i][1], T()), pack(x[i][2], x[i][3], T()),
                               pack(x[i][4], x[i][5], T()), pack(x[i][6], x[i][7], T())};
            store_shared(own.at(t + i, own_piece), packed);
            if (t + i < stored) __stcg(reinterpret_cast<uint4 *>(to), packed);
            to += a.channels();
        }
    }
}

} // namespace
} // namespace batchllm::cuda
