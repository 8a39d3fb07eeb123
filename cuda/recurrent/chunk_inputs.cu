// What comes before the products of chunks (chunk.h), for all tokens at once: convolution, lengths of q and k, gates.
// Each channel of a token takes two bytes read and two written; for every 16 tokens the three before them are read
// again, from L2. Bound by memory, as long as instructions and their latencies stay hidden.
//
// A warp has two neighbouring heads, eight channels a lane. It computes pieces of 16 tokens and keeps its heads' weights
// in registers from piece to piece; a block's warps have the same heads. A lane copies to shared memory only what it
// reads itself, so it waits for no other lane. Whenever it has mixed four tokens it asks for four more, so that eight
// are under way. With more under way, all warps would mix their last tokens at the end while nothing is being read.
#include <algorithm>

#include "recurrent/chunk.cuh"
#include "recurrent/convolve.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * 32;
constexpr int kBlocks = 4; // of an SM: what its registers hold
constexpr int kEach = 8;   // channels of a lane
constexpr int kLanes = kHeadDim / kEach;
constexpr int kPiece = 16;                    // tokens
constexpr int kPieces = kStateChunk / kPiece; // of a chunk
constexpr int kBefore = kRing - 1;            // tokens before a piece that its convolution sees
constexpr int kBatch = 4;                     // tokens that are copied together
constexpr int kMixed = 2;                     // of them, that are mixed together
constexpr int kDepth = 2;                     // batches under way
constexpr int kRows = kBefore + kBatch;       // of a batch; the kBefore only in a piece's first

int pairs_of(const DeltaArguments &a) { // of heads
    return (2 * a.key_heads + a.value_heads + 1) / 2;
}

// Tokens of an item.
struct alignas(16) Piece {
    int token, count; // of the step
    int position;     // of the first
    int ring;         // the slot that has the tokens before it; -1: they are the step's

    __device__ __forceinline__ Piece() {}
    // All first pieces of chunks come first: the chunks of short prompts have no others.
    __device__ __forceinline__ Piece(const ChunkArguments &c, const StateLevel &level, int index)
        : count(0) {
        const int chunks = level.chunk_end - level.chunk_begin;
        if (index >= chunks * kPieces) return;
        const StateChunk chunk = c.chunks[level.chunk_begin + index % chunks];
        const StateItem item = c.delta.items[chunk.item];
        const int first = chunk.first + index / chunks * kPiece;
        token = item.token_begin + first;
        count = max(min(kPiece, item.token_count - first), 0);
        position = item.position + first;
        ring = first == 0 ? item.from : -1;
    }
};

// A lane's rows of a batch, 16 bytes of each.
struct Rows {
    uint32_t base; // in shared memory

    __device__ __forceinline__ uint32_t at(int t) const { // from -kBefore on
        return base + (t + kBefore) * 512;
    }
    template <typename T> __device__ __forceinline__ void
    copy_before(const DeltaArguments &a, const Piece &piece, int channel) const {
#pragma unroll
        for (int t = -kBefore; t < 0; ++t) {
            const int position = piece.position + t;
            const T *from = piece.ring >= 0
                                ? ring_of<T>(a, piece.ring) + position % kRing * a.channels()
                                : projected_of<T>(a, piece.token + (position >= 0 ? t : 0));
            copy_async(at(t), from + channel, position >= 0);
        }
    }
    // count: of the tokens that are there
    template <typename T>
    __device__ __forceinline__ void copy(const T *from, int64_t stride, int count) const {
#pragma unroll
        for (int t = 0; t < kBatch; ++t) {
            if (t < count) copy_async(at(t), from + t * stride, true);
        }
    }
};

// The factors that make two tokens' vectors unit vectors, in all lanes of a half warp. A head's sum is taken in the order
// of a warp whose lanes have four channels each: over a lane's four, then over lanes, the farthest first. After the first
// exchange a lane's bit 3 tells whose token it adds up, after the second its bit 2 which four of each eight channels.
__device__ __forceinline__ void unit_scales(const float (&x)[kMixed][kEach], bool query,
                                            float (&scales)[kMixed]) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const bool second = lane & 8, last = lane & 4;
    float halves[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float sums[kMixed] = {};
#pragma unroll
        for (int t = 0; t < kMixed; ++t) {
#pragma unroll
            for (int e = half * 4; e < half * 4 + 4; ++e) sums[t] += x[t][e] * x[t][e];
        }
        halves[half] =
            (second ? sums[1] : sums[0]) + __shfl_xor_sync(~0u, second ? sums[0] : sums[1], 8);
    }
    float sum =
        (last ? halves[1] : halves[0]) + __shfl_xor_sync(~0u, last ? halves[0] : halves[1], 4);
    sum += __shfl_xor_sync(~0u, sum, 2);
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 4);
    const float scale = unit_scale(sum, kHeadDim, query);
#pragma unroll
    for (int t = 0; t < kMixed; ++t) scales[t] = __shfl_sync(~0u, scale, 8 * t, kLanes);
}

template <typename T>
__device__ __forceinline__ void store_if(bool there, T *to, const float (&x)[kEach]) {
    asm volatile("{\n"
                 ".reg .pred there;\n"
                 "setp.ne.b32 there, %0, 0;\n"
                 "@there st.global.v4.b32 [%1], {%2, %3, %4, %5};\n"
                 "}" ::"r"(static_cast<int>(there)),
                 "l"(to), "r"(pack(x[0], x[1], T())), "r"(pack(x[2], x[3], T())),
                 "r"(pack(x[4], x[5], T())), "r"(pack(x[6], x[7], T()))
                 : "memory");
}

template <typename T>
__device__ __forceinline__ void see(uint32_t row, Convolution<kEach> *convolution) {
    float newest[kEach];
    widen(Packed8<T>{load_shared(row)}, newest);
    convolution->see(newest);
}

// Mixes a batch, the tokens from `begin` of a piece on. Those before `stored` are written to `to`, which moves on.
template <typename T>
__device__ __forceinline__ void mix_batch(const DeltaArguments &a, const Rows &batch, int begin,
                                          int stored, bool unit, bool query,
                                          Convolution<kEach> *convolution, T **to) {
#pragma unroll
    for (int first = 0; first < kBatch; first += kMixed) {
        float x[kMixed][kEach], scales[kMixed];
#pragma unroll
        for (int t = 0; t < kMixed; ++t) {
            see<T>(batch.at(first + t), convolution);
            convolution->mix(x[t]);
        }
        if (unit) {
            unit_scales(x, query, scales);
#pragma unroll
            for (int t = 0; t < kMixed; ++t) {
#pragma unroll
                for (float &y : x[t]) y *= scales[t];
            }
        }
#pragma unroll
        for (int t = 0; t < kMixed; ++t, *to += a.channels()) {
            store_if(begin + first + t < stored, *to, x[t]);
        }
    }
}

// Where eight neighbouring lanes find their channels' weights in different banks.
__device__ __forceinline__ int weights_place(int channel) {
    return channel / kEach * kEach + (channel ^ channel / kEach) % kEach;
}

template <typename T> __global__ void __launch_bounds__(kThreads, kBlocks)
    chunk_inputs(const __grid_constant__ ChunkArguments c) {
    __shared__ uint4 shared[kWarps][kDepth][kRows][32];
    __shared__ float4 weights[2 * kHeadDim];
    __shared__ Piece found[kWarps][32];
    const DeltaArguments &a = c.delta;
    const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
    const int pair = static_cast<int>(blockIdx.x), along = static_cast<int>(gridDim.y) * kWarps;
    const int heads = 2 * a.key_heads + a.value_heads, wanted = 2 * pair + lane / kLanes;
    const int head = min(wanted, heads - 1); // of an odd number the last one twice
    const int value_head = wanted < heads ? wanted - 2 * a.key_heads : -1;
    const bool unit = pair < a.key_heads, query = head < a.key_heads; // never k and v in a pair
    const int channel = head * kHeadDim + lane % kLanes * kEach;
#pragma unroll
    for (int i = static_cast<int>(threadIdx.x); i < 2 * kHeadDim; i += kThreads) {
        const int from = min(2 * pair * kHeadDim + i, a.channels() - 1);
        copy_async(shared_address(weights + weights_place(i)), a.convolution + from * kRing, true);
    }
    copy_async_commit();
    const uint32_t rows = shared_address(&shared[warp][0][0][lane]);
    Convolution<kEach> convolution;
#pragma unroll 1
    for (int first = static_cast<int>(blockIdx.y) * kWarps + warp;; first += 32 * along) {
        const StateLevel &level = *a.level;
        const Piece mine(c, level, first + lane * along); // a lane finds every along-th
        __syncwarp();
        found[warp][lane] = mine;
        __syncwarp();
        const unsigned all = __ballot_sync(~0u, mine.count > 0);
        unsigned ahead = all; // pieces that are still to be copied from their beginning
        int copied = 0;       // tokens of the current one that are still to be copied
        const T *from = nullptr;
        const auto fetch = [&](int slot) {
            const Rows to{rows + slot * (kRows * 512)};
            if (copied <= 0 && ahead != 0) {
                const Piece piece = found[warp][__ffs(static_cast<int>(ahead)) - 1];
                ahead &= ahead - 1;
                to.copy_before<T>(a, piece, channel);
                from = projected_of<T>(a, piece.token) + channel;
                copied = piece.count;
            }
            to.copy(from, a.stride, copied);
            from += kBatch * a.stride;
            copied -= kBatch;
            copy_async_commit();
        };
#pragma unroll 1
        for (int slot = 0; slot < kDepth; ++slot) fetch(slot);
        if (first < along) { // the first time: the weights have come meanwhile
            copy_async_wait<kDepth>();
            __syncthreads();
            convolution.load([&](int e) { return weights[weights_place(lane * kEach + e)]; });
        }
        int slot = 0;
#pragma unroll 1
        for (unsigned left = all; left != 0; left &= left - 1) {
            const Piece &piece = found[warp][__ffs(static_cast<int>(left)) - 1];
            const int count = piece.count, stored = wanted < heads ? count : 0;
            T *to = mixed_of<T>(c, piece.token) + channel;
            static_assert(kLanes == kPiece); // a lane has a token's gates of its half warp's head
            const int64_t token = piece.token + lane % kLanes;
            const bool gated = value_head >= 0 && lane % kLanes < stored;
            T rate{}, step{}; // on their way while the piece is mixed
            float bias = 0, decay = 0;
            if (gated) {
                const T *gates = projected_of<T>(a, token) + a.channels() + a.values_size();
                rate = gates[value_head], step = gates[a.value_heads + value_head];
                bias = a.step[value_head], decay = a.decay[value_head];
            }
#pragma unroll 1
            for (int begin = 0; begin < count; begin += kBatch) {
                copy_async_wait<kDepth - 1>();
                const Rows batch{rows + slot * (kRows * 512)};
                if (begin == 0) {
#pragma unroll
                    for (int t = -kBefore; t < 0; ++t) see<T>(batch.at(t), &convolution);
                }
                mix_batch(a, batch, begin, stored, unit, query, &convolution, &to);
                fetch(slot);
                slot = slot + 1 == kDepth ? 0 : slot + 1;
            }
            if (gated) {
                const DeltaGates gates = gates_of(to_float(rate), to_float(step), bias, decay);
                c.gates[token * a.value_heads + value_head] =
                    make_float2(gates.log_decay * kLog2e, gates.rate);
            }
        }
        if (first + 32 * along >= (level.chunk_end - level.chunk_begin) * kPieces) return;
    }
}

} // namespace

cudaError_t launch_chunk_inputs(const ChunkArguments &a, cudaStream_t stream) {
    const int pairs = pairs_of(a.delta), most = a.chunk_count * kPieces;
    const int along = std::min(kBlocks * a.delta.sms / pairs, (most + kWarps - 1) / kWarps);
    const dim3 grid(static_cast<unsigned>(pairs), static_cast<unsigned>(std::max(along, 1)));
    return with_half(a.delta.element, [&](auto t) {
        chunk_inputs<decltype(t)><<<grid, kThreads, 0, stream>>>(a);
        return cudaGetLastError();
    });
}

} // namespace batchllm::cuda
