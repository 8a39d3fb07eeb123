// What goes from chunk to chunk (chunk.h): N, results, S. A block has one value head of one item and 64 of its
// columns, a warp 16 of them, for which it needs no other warp: it keeps S^T in the accumulators of its products, and
// what they give becomes an operand of the next ones where it is,
//     N^T = U^T - S^T W^T     results^T = exp(G) S^T q^T + N^T P^T     S^T = exp(G_last) S^T + (exp(G_last - G) N)^T k
// With two stages the next chunk's operands are copied meanwhile; one leaves room for more blocks.
#include "recurrent/chunk.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kColumns = 64; // of S, a block's

using Rows = Tile<kHeadDim>;
using Weights = Tile<kDeltaChunk>;
using Columns = Tile<kColumns>;

struct AcrossOperands {
    alignas(128) unsigned char w[kDeltaChunk * Rows::kRowBytes];
    alignas(128) unsigned char queries[kDeltaChunk * Rows::kRowBytes];
    alignas(128) unsigned char keys[kDeltaChunk * Rows::kRowBytes];
    alignas(128) unsigned char p[kDeltaChunk * Weights::kRowBytes];
    alignas(128) unsigned char u[kDeltaChunk * Columns::kRowBytes];
    float2 decays[kDeltaChunk]; // exp(G), exp(G_last - G)
};

struct AcrossPlace {
    DeltaItem item;
    int head, column; // column: the first of the block's
};

template <typename T> __device__ __forceinline__ void
copy_operands(const ChunkArguments &c, const AcrossPlace &place, int first, AcrossOperands *to) {
    const DeltaArguments &a = c.delta;
    const int thread = static_cast<int>(threadIdx.x);
    const int count = min(kDeltaChunk, place.item.token_count - first);
    const int64_t token = int64_t{place.item.token_begin} + first;
    const int64_t w_stride = int64_t{a.value_heads} * kHeadDim, channels = a.channels();
    const int key_head = place.head / (a.value_heads / a.key_heads);
    const T *mixed = mixed_of<T>(c, token);
    Rows{shared_address(to->w)}.copy<kThreads>(
        thread, static_cast<const T *>(c.w) + token * w_stride + place.head * kHeadDim, w_stride,
        count);
    Rows{shared_address(to->queries)}.copy<kThreads>(thread, mixed + key_head * kHeadDim, channels,
                                                     count);
    Columns{shared_address(to->u)}.copy<kThreads>(
        thread, mixed + 2 * a.keys_size() + place.head * kHeadDim + place.column, channels, count);
    Rows{shared_address(to->keys)}.copy<kThreads>(
        thread, mixed + a.keys_size() + key_head * kHeadDim, channels, count);
    Weights{shared_address(to->p)}.copy<kThreads>(
        thread, static_cast<const T *>(c.p) + (token * a.value_heads + place.head) * kDeltaChunk,
        int64_t{a.value_heads} * kDeltaChunk, count);
    if (thread < kDeltaChunk) {
        const float2 *from =
            c.gates + (token + min(thread, count - 1)) * a.value_heads + place.head;
        asm volatile(
            "cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared_address(to->decays + thread)),
            "l"(from)
            : "memory");
    }
    copy_async_commit();
}

// In mma's accumulator layout, of the warp's 16 columns: S^T, and what is by tokens.
using StateSums = float[kHeadDim / 8][4];
using TokenSums = float[kDeltaChunk / 8][4];

// Calls visit(n, e, row, column): sums[n][e] is S at that row, and at that column from the block's first.
template <typename Visit> __device__ __forceinline__ void visit_state(const Visit &visit) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            visit(n, e, 8 * n + lane % 4 * 2 + e % 2, warp * 16 + lane / 4 + e / 2 * 8);
        }
    }
}

// Two neighbouring tiles of 16 by 8 sums as A of 16 by 16.
template <typename T> __device__ __forceinline__ void
as_operand(uint32_t (&a)[4], const float (&left)[4], const float (&right)[4]) {
    a[0] = pack(left[0], left[1], T()), a[1] = pack(left[2], left[3], T());
    a[2] = pack(right[0], right[1], T()), a[3] = pack(right[2], right[3], T());
}

// known = S^T W^T, found = S^T q^T
template <typename T>
__device__ __forceinline__ void multiply_by_state(const StateSums &state, const Rows &w,
                                                  const Rows &queries, TokenSums &known,
                                                  TokenSums &found) {
#pragma unroll
    for (int k = 0; k < kHeadDim; k += 16) {
        uint32_t a[4];
        as_operand<T>(a, state[k / 8], state[k / 8 + 1]);
#pragma unroll
        for (int n = 0; n < kDeltaChunk; n += 16) {
            uint32_t b[4];
            w.load_turned_b(b, k, n);
            mma_sync(known[n / 8], a, b[0], b[1], T());
            mma_sync(known[n / 8 + 1], a, b[2], b[3], T());
            queries.load_turned_b(b, k, n);
            mma_sync(found[n / 8], a, b[0], b[1], T());
            mma_sync(found[n / 8 + 1], a, b[2], b[3], T());
        }
    }
}

// N^T = U^T - known
template <typename T>
__device__ __forceinline__ void subtract_from(const Columns &u, TokenSums &known) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < kDeltaChunk; n += 16) {
        uint32_t
            wanted[4]; // tokens n on, the warp's first and second eight columns; tokens n + 8 on
        load_matrix_transposed(wanted, u.at(n + lane % 8 + lane / 16 * 8, warp * 2 + lane / 8 % 2));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 x =
                Pair<T>::wide(*reinterpret_cast<const typename Pair<T>::type *>(&wanted[i]));
            float *sums = known[n / 8 + i / 2] + i % 2 * 2;
            sums[0] = x.x - sums[0];
            sums[1] = x.y - sums[1];
        }
    }
}

// found = exp(G) found + N^T P^T
template <typename T> __device__ __forceinline__ void
add_within(const float2 *decays, const Weights &p, const TokenSums &changes, TokenSums &found) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < kDeltaChunk / 8; ++n) {
        const float4 two = *reinterpret_cast<const float4 *>(decays + 8 * n + lane % 4 * 2);
        found[n][0] *= two.x, found[n][1] *= two.z, found[n][2] *= two.x, found[n][3] *= two.z;
    }
#pragma unroll
    for (int k = 0; k < kDeltaChunk; k += 16) {
        uint32_t a[4];
        as_operand<T>(a, changes[k / 8], changes[k / 8 + 1]);
#pragma unroll
        for (int n = k; n < kDeltaChunk; n += 16) { // earlier tokens do not see k
            uint32_t b[4];
            p.load_turned_b(b, k, n);
            mma_sync(found[n / 8], a, b[0], b[1], T());
            mma_sync(found[n / 8 + 1], a, b[2], b[3], T());
        }
    }
}

// S^T = exp(G_last) S^T + (exp(G_last - G) N)^T k
template <typename T> __device__ __forceinline__ void
advance_state(const float2 *decays, const Rows &keys, TokenSums &changes, StateSums &state) {
    const int lane = threadIdx.x % 32;
    const float decay = decays[kDeltaChunk - 1].x;
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) state[n][e] *= decay;
    }
#pragma unroll
    for (int n = 0; n < kDeltaChunk / 8; ++n) {
        const float4 two = *reinterpret_cast<const float4 *>(decays + 8 * n + lane % 4 * 2);
        changes[n][0] *= two.y, changes[n][1] *= two.w;
        changes[n][2] *= two.y, changes[n][3] *= two.w;
    }
#pragma unroll
    for (int k = 0; k < kDeltaChunk; k += 16) {
        uint32_t a[4];
        as_operand<T>(a, changes[k / 8], changes[k / 8 + 1]);
#pragma unroll
        for (int n = 0; n < kHeadDim; n += 16) {
            uint32_t b[4];
            keys.load_b(b, k, n);
            mma_sync(state[n / 8], a, b[0], b[1], T());
            mma_sync(state[n / 8 + 1], a, b[2], b[3], T());
        }
    }
}

// out: the first token's, at the block's first column
template <typename T> __device__ __forceinline__ void store_results(const TokenSums &found, T *out,
                                                                    int64_t stride, int count) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    out += warp * 16 + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < kDeltaChunk / 8; ++n) {
        const int token = 8 * n + lane / 4;
#pragma unroll
        for (int half = 0; half < 2; ++half) { // of the columns
            const uint32_t pair = turned(pack(found[n][2 * half], found[n][2 * half + 1], T()));
            if (token < count)
                *reinterpret_cast<uint32_t *>(out + token * stride + 8 * half) = pair;
        }
    }
}

template <typename T, typename S, int kStages>
__global__ void __launch_bounds__(kThreads, kStages == 1 ? 2 : 1)
    across_chunks(const __grid_constant__ ChunkArguments c) {
    extern __shared__ __align__(128) unsigned char memory[];
    auto *stages = reinterpret_cast<AcrossOperands *>(memory);
    const DeltaArguments &a = c.delta;
    const DeltaLevel level = *a.level;
    constexpr int kBlocks = kHeadDim / kColumns; // of a head
    const int each = a.value_heads * kBlocks, count = (level.end - level.chunked) * each;
    const auto place_at = [&](int i) {
        AcrossPlace place;
        place.item = a.items[level.chunked + i / each];
        place.head = i % each / kBlocks;
        place.column = i % kBlocks * kColumns;
        return place;
    };
    for (int i = static_cast<int>(blockIdx.x); i < count; i += static_cast<int>(gridDim.x)) {
        const AcrossPlace place = place_at(i);
        copy_operands<T>(c, place, 0, stages);
        StateSums state = {};
        if (place.item.from >= 0) {
            const S *from = state_of<S>(a, place.item.from, place.head) + place.column;
            visit_state([&](int n, int e, int row, int column) {
                state[n][e] = to_float(from[row * kHeadDim + column]);
            });
        }
        for (int first = 0, stage = 0; first < place.item.token_count; first += kDeltaChunk) {
            const int next = first + kDeltaChunk;
            copy_async_wait<0>();
            __syncthreads();
            if (kStages > 1 && next < place.item.token_count) {
                copy_operands<T>(c, place, next, stages + (stage ^ 1));
            }
            const AcrossOperands &operands = stages[stage];
            TokenSums known = {}, found = {};
            multiply_by_state<T>(state, Rows{shared_address(operands.w)},
                                 Rows{shared_address(operands.queries)}, known, found);
            subtract_from<T>(Columns{shared_address(operands.u)}, known);
            add_within<T>(operands.decays, Weights{shared_address(operands.p)}, known, found);
            const int64_t token = int64_t{place.item.token_begin} + first;
            store_results(found,
                          static_cast<T *>(a.out) + token * a.values_size() +
                              place.head * kHeadDim + place.column,
                          a.values_size(), place.item.token_count - first);
            advance_state<T>(operands.decays, Rows{shared_address(operands.keys)}, known, state);
            if (kStages > 1) {
                stage ^= 1;
            } else {
                __syncthreads();
                if (next < place.item.token_count) copy_operands<T>(c, place, next, stages);
            }
        }
        __syncthreads(); // before the next item's operands come
        S *to = state_of<S>(a, place.item.state, place.head) + place.column;
        visit_state([&](int n, int e, int row, int column) {
            to[row * kHeadDim + column] = from_float<S>(state[n][e]);
        });
    }
}

template <typename T, typename S, int kStages>
cudaError_t launch(const ChunkArguments &a, int64_t most, cudaStream_t stream) {
    const auto kernel = across_chunks<T, S, kStages>;
    constexpr auto bytes = static_cast<int>(kStages * sizeof(AcrossOperands));
    const cudaError_t set =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (set != cudaSuccess) return set;
    const auto blocks = static_cast<unsigned>(
        std::min<int64_t>(most, int64_t{a.delta.sms} * (kStages == 1 ? 2 : 1)));
    kernel<<<blocks, kThreads, bytes, stream>>>(a);
    return cudaGetLastError();
}

} // namespace

cudaError_t launch_across_chunks(const ChunkArguments &a, cudaStream_t stream) {
    int shared = 0;
    if (const cudaError_t code = most_shared(&shared); code != cudaSuccess) return code;
    const int64_t each = int64_t{a.delta.value_heads} * (kHeadDim / kColumns);
    const int64_t most = a.most_chunks * each; // an item has at least one chunk
    const bool two =
        a.items * each <= a.delta.sms && shared >= static_cast<int>(2 * sizeof(AcrossOperands));
    return with_half(a.delta.element, [&](auto t) {
        return with_state(a.delta.state, [&](auto s) {
            return two ? launch<decltype(t), decltype(s), 2>(a, most, stream)
                       : launch<decltype(t), decltype(s), 1>(a, most, stream);
        });
    });
}

} // namespace batchllm::cuda
