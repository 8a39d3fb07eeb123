// What of a chunk depends on no state (chunk.h), by wgmma: T = (1 + A)^-1, its columns times the rates, and P. All chunks
// at once: a block of one warpgroup has a chunk of a value head, 16 of the tokens a warp: of A and P in the accumulators
// of K K^T and Q K^T, then of T.
#include <algorithm>

#include "device/launch.cuh"
#include "device/tensor_map.h"
#include "recurrent/inverse_sm90.cuh"
#include "recurrent/rule_gates.cuh"

namespace batchllm::cuda {
namespace {

using Weights = Tile<kStateChunk>;

struct WeightsShared {
    RulePlace place;
    alignas(128) unsigned char rows[kSquares]
                                   [kSquare * Weights::kRowBytes]; // a warp's, on their way out
    InverseShared inverse;
    RuleGates gates;
    uint64_t full;
};

// across = K K^T, weights = Q K^T
template <typename T> __device__ __forceinline__ void
multiply_keys(const RulePlace &place, float (&across)[32], float (&weights)[32]) {
    const Operand keys(shared_address(place.panels[0])),
        queries(shared_address(place.panels[0] + kHalfBytes));
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kHeadDim / 16; ++i) {
        const uint32_t at = i / 4 * kPanelBytes + i % 4 * 32;
        wgmma_ss(weights, queries.at(at), keys.at(at), i > 0, T());
        wgmma_ss(across, keys.at(at), keys.at(at), i > 0, T());
    }
    wgmma_commit();
    wgmma_wait<0>();
}

// Where a lane's rows of a warp's 16 are for store_matrix, columns 16 n on.
__device__ __forceinline__ uint32_t row_place(const unsigned char *tile, int n) {
    const int lane = thread_anew() % 32;
    return Weights{shared_address(tile)}.at(lane % 16, 2 * n + lane / 16);
}

// K K^T to -A in place; Q K^T to P in `p`.
template <typename T> __device__ __forceinline__ void apply_gates(const RuleGates &gates, int warp,
                                                                  const unsigned char *p,
                                                                  SquareSums &across,
                                                                  const SquareSums &weights) {
    const int lane = thread_anew() % 32, first = warp * kSquare + lane / 4;
    const float sums[2] = {gates.sums[first], gates.sums[first + 8]};
    const float rates[2] = {-gates.rates[first], -gates.rates[first + 8]};
#pragma unroll
    for (int n = 0; n < kSquares; ++n) {
        uint32_t r[4] = {}; // of later tokens
        if (n <= warp) {
#pragma unroll
            for (int e = 0; e < 8; e += 2) {
                const int half = e / 2 % 2, i = first + half * 8;
                const int j = n * kSquare + e / 4 * 8 + lane % 4 * 2;
                const float2 at = *reinterpret_cast<const float2 *>(gates.sums + j);
                const float decay = exp2_approximate(j <= i ? sums[half] - at.x : -INFINITY);
                const float next = exp2_approximate(j < i ? sums[half] - at.y : -INFINITY);
                r[e / 2] = pack(j <= i ? weights[n][e] * decay : 0.0f,
                                j < i ? weights[n][e + 1] * next : 0.0f, T());
                across[n][e] = j < i ? rates[half] * decay * across[n][e] : 0.0f;
                across[n][e + 1] = j + 1 < i ? rates[half] * next * across[n][e + 1] : 0.0f;
            }
        }
        store_matrix(row_place(p, n), r);
    }
}

// T, its columns times the tokens' rates: then the rates need not be in what it is multiplied with.
template <typename T> __device__ __forceinline__ void
leave_inverse(const SquareSums &inverse, const float *rates, const unsigned char *to) {
    const int lane = thread_anew() % 32;
#pragma unroll
    for (int n = 0; n < kSquares; ++n) {
        uint32_t r[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 by =
                *reinterpret_cast<const float2 *>(rates + n * kSquare + i / 2 * 8 + lane % 4 * 2);
            r[i] = pack(inverse[n][2 * i] * by.x, inverse[n][2 * i + 1] * by.y, T());
        }
        store_matrix(row_place(to, n), r);
    }
}

// A warp's rows as they are in `from`, `count` of them; to: the first.
template <typename T> __device__ __forceinline__ void store_rows(const unsigned char *from, T *to,
                                                                 int stride, int count) {
    __syncwarp();
    const int lane = thread_anew() % 32;
    const Weights rows{shared_address(from)};
#pragma unroll
    for (int r = 0; r < kSquare; r += 4) {
        const int row = r + lane / 8;
        const uint4 packed = load_shared(rows.at(row, lane % 8));
        if (row < count) {
            __stcg(reinterpret_cast<uint4 *>(to + row * stride + lane % 8 * 8), packed);
        }
    }
    __syncwarp();
}

template <typename T> __device__ __forceinline__ void
make_weights(const ChunkArguments &c, const ChunkPlace &place, int head, WeightsShared *shared) {
    const int warp = __shfl_sync(~0u, thread_anew() / 32, 0);
    const int stride = c.delta.value_heads * kStateChunk, count = place.count - warp * kSquare;
    const int64_t at = (place.token + warp * kSquare) * stride + head * kStateChunk;
    unsigned char *rows = shared->rows[warp];
    float across[32], weights[32];
    multiply_keys<T>(shared->place, across, weights);
    auto &squares = reinterpret_cast<SquareSums &>(across);
    apply_gates<T>(shared->gates, warp, rows, squares, reinterpret_cast<SquareSums &>(weights));
    store_rows(rows, static_cast<T *>(c.p) + at, stride, count);
    const int used = (place.count + kSquare - 1) / kSquare; // warps with rows
    SquareSums inverse;
    invert(squares, used, 0, warp, &shared->inverse, inverse);
    leave_inverse<T>(inverse, shared->gates.rates, rows);
    store_rows(rows, static_cast<T *>(c.w) + at, stride, count);
}

template <typename T> __global__ void __launch_bounds__(kGroup, 4)
    chunk_weights(const __grid_constant__ ChunkArguments c,
                  const __grid_constant__ CUtensorMap mixed) {
    extern __shared__ __align__(1024) unsigned char memory[];
    auto *shared = reinterpret_cast<WeightsShared *>(memory);
    const DeltaArguments &a = c.delta;
    const uint32_t full = shared_address(&shared->full);
    if (threadIdx.x == 0) {
        barrier_init(full, 1);
        barrier_init_fence();
    }
    __syncthreads();
    const StateLevel level = *a.level;
    const int count = (level.chunk_end - level.chunk_begin) * a.value_heads;
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
    uint32_t phase = 0;
    for (int i = static_cast<int>(blockIdx.x); i < count; i += static_cast<int>(gridDim.x)) {
        const ChunkPlace place(c, c.chunks[level.chunk_begin + i / a.value_heads]);
        const int head = i % a.value_heads, key_head = head / (a.value_heads / a.key_heads);
        if (warp == 0 && elect_one()) {
            barrier_expect(full, 2 * token_bytes(place.count));
            const int token = static_cast<int>(place.token);
            const unsigned char *to = shared->place.panels[0];
            load_tokens<2>(mixed, a.keys_size() + key_head * kHeadDim, token, place.count, to,
                           kPanelBytes, full);
            load_tokens<2>(mixed, key_head * kHeadDim, token, place.count, to + kHalfBytes,
                           kPanelBytes, full);
        } else if (warp == 1) {
            LaneGates gates;
            gates.load(c, place.item, place.first, head);
            gates.leave(&shared->gates);
        }
        barrier_wait(full, phase);
        phase ^= 1;
        if (place.count < kStateChunk) { // what is beyond may be anything
            clear_keys(&shared->place, place.count);
            async_proxy_fence();
        }
        __syncthreads();
        make_weights<T>(c, place, head, shared);
        __syncthreads(); // before the next chunk's come
    }
}

} // namespace

cudaError_t launch_rule_weights_sm90(const ChunkArguments &c, cudaStream_t stream) {
    const DeltaArguments &a = c.delta;
    CUtensorMap mixed;
    const cudaError_t status =
        make_tensor_map(c.mixed, a.element, c.tokens, a.channels(), kBoxRows, &mixed);
    if (status != cudaSuccess) return status;
    const int64_t most = int64_t{c.most_chunks} * a.value_heads;
    const auto blocks = static_cast<unsigned>(std::min<int64_t>(most, int64_t{4} * a.sms));
    return with_half(a.element, [&](auto t) {
        return launch_with_shared(chunk_weights<decltype(t)>, blocks, kGroup,
                                  static_cast<int>(sizeof(WeightsShared)), stream, c, mixed);
    });
}

} // namespace batchllm::cuda
