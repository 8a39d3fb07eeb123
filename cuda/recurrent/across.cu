// What goes from chunk to chunk (chunk.h): N, results, S, by mma.sync (across.cuh). With two stages the next chunk's
// operands are copied meanwhile; one leaves room for more blocks.
#include "device/copies.cuh"
#include "device/launch.cuh"
#include "recurrent/across.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kThreads = 128;

struct AcrossOperands {
    alignas(128) unsigned char w[kStateChunk * Rows::kRowBytes];
    alignas(128) unsigned char queries[kStateChunk * Rows::kRowBytes];
    alignas(128) unsigned char keys[kStateChunk * Rows::kRowBytes];
    alignas(128) unsigned char p[kStateChunk * Weights::kRowBytes];
    alignas(128) unsigned char u[kStateChunk * Columns::kRowBytes];
    float2 decays[kStateChunk]; // exp(G), exp(G_last - G)
};

template <typename T> __device__ __forceinline__ void
copy_operands(const ChunkArguments &c, const AcrossPlace &place, int first, AcrossOperands *to) {
    const DeltaArguments &a = c.delta;
    const int thread = static_cast<int>(threadIdx.x);
    const int count = min(kStateChunk, place.item.token_count - first);
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
        thread, static_cast<const T *>(c.p) + (token * a.value_heads + place.head) * kStateChunk,
        int64_t{a.value_heads} * kStateChunk, count);
    if (thread < kStateChunk) {
        const float2 *from =
            c.gates + (token + min(thread, count - 1)) * a.value_heads + place.head;
        copy_async_pair(shared_address(to->decays + thread), from);
    }
    copy_async_commit();
}

// known = S^T W^T, found = S^T q^T
template <typename T>
__device__ __forceinline__ void multiply_by_state(const StateSums &state, const Rows &w,
                                                  const Rows &queries, TokenSums &known,
                                                  TokenSums &found) {
#pragma unroll
    for (int k = 0; k < kHeadDim; k += 16) {
        uint32_t a[4];
        as_operand<T>(a, state + k / 2, state + k / 2 + 4);
#pragma unroll
        for (int n = 0; n < kStateChunk; n += 16) {
            uint32_t b[4];
            w.load_transposed_b(b, k, n);
            mma_sync(known + n / 2, a, b[0], b[1], T());
            mma_sync(known + n / 2 + 4, a, b[2], b[3], T());
            queries.load_transposed_b(b, k, n);
            mma_sync(found + n / 2, a, b[0], b[1], T());
            mma_sync(found + n / 2 + 4, a, b[2], b[3], T());
        }
    }
}

// found = exp(G) found + N^T P^T
template <typename T> __device__ __forceinline__ void
add_within(const float2 *decays, const Weights &p, const TokenSums &changes, TokenSums &found) {
    decay_tokens<false>(decays, found);
#pragma unroll
    for (int k = 0; k < kStateChunk; k += 16) {
        uint32_t a[4];
        as_operand<T>(a, changes + k / 2, changes + k / 2 + 4);
#pragma unroll
        for (int n = k; n < kStateChunk; n += 16) { // earlier tokens do not see k
            uint32_t b[4];
            p.load_transposed_b(b, k, n);
            mma_sync(found + n / 2, a, b[0], b[1], T());
            mma_sync(found + n / 2 + 4, a, b[2], b[3], T());
        }
    }
}

// S^T = exp(G_last) S^T + (exp(G_last - G) N)^T k
template <typename T> __device__ __forceinline__ void
advance_state(const float2 *decays, const Rows &keys, TokenSums &changes, StateSums &state) {
    decay_state(decays, state);
    decay_tokens<true>(decays, changes);
#pragma unroll
    for (int k = 0; k < kStateChunk; k += 16) {
        uint32_t a[4];
        as_operand<T>(a, changes + k / 2, changes + k / 2 + 4);
#pragma unroll
        for (int n = 0; n < kHeadDim; n += 16) {
            uint32_t b[4];
            keys.load_b(b, k, n);
            mma_sync(state + n / 2, a, b[0], b[1], T());
            mma_sync(state + n / 2 + 4, a, b[2], b[3], T());
        }
    }
}

template <typename T, typename S, int kStages>
__global__ void __launch_bounds__(kThreads, kStages == 1 ? 2 : 1)
    across_chunks(const __grid_constant__ ChunkArguments c) {
    extern __shared__ __align__(128) unsigned char memory[];
    auto *stages = reinterpret_cast<AcrossOperands *>(memory);
    const DeltaArguments &a = c.delta;
    const AcrossPlaces places(a);
    for (int i = static_cast<int>(blockIdx.x); i < places.count; i += static_cast<int>(gridDim.x)) {
        const AcrossPlace place = places.at(i);
        copy_operands<T>(c, place, 0, stages);
        StateSums state = {};
        if (place.item.from >= 0) {
            const S *from = state_of<S>(a, place.item.from, place.head) + place.column;
            visit_state([&](int i, int row, int column) {
                state[i] = to_float(from[row * kHeadDim + column]);
            });
        }
        for (int first = 0, stage = 0; first < place.item.token_count; first += kStateChunk) {
            const int next = first + kStateChunk;
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
            store_results(found, results_of<T>(c, place, first), a.values_size(),
                          place.item.token_count - first);
            advance_state<T>(operands.decays, Rows{shared_address(operands.keys)}, known, state);
            if (kStages > 1) {
                stage ^= 1;
            } else {
                __syncthreads();
                if (next < place.item.token_count) copy_operands<T>(c, place, next, stages);
            }
        }
        __syncthreads(); // before the next item's operands come
        store_state<S>(a, place, state);
    }
}

template <typename T, typename S, int kStages>
cudaError_t launch(const ChunkArguments &a, int64_t most, cudaStream_t stream) {
    constexpr auto bytes = static_cast<int>(kStages * sizeof(AcrossOperands));
    const auto blocks = static_cast<unsigned>(
        std::min<int64_t>(most, int64_t{a.delta.sms} * (kStages == 1 ? 2 : 1)));
    return launch_with_shared(across_chunks<T, S, kStages>, blocks, kThreads, bytes, stream, a);
}

} // namespace

cudaError_t launch_across_chunks(const ChunkArguments &a, cudaStream_t stream) {
    if (a.delta.sm90) return launch_across_sm90(a, stream);
    int shared = 0;
    if (const cudaError_t code = most_shared(&shared); code != cudaSuccess) return code;
    const int64_t each = int64_t{a.delta.value_heads} * AcrossPlaces::kBlocks;
    const int64_t most = a.chunk_count * each; // an item has at least one chunk
    const bool two = a.item_count * each <= a.delta.sms &&
                     shared >= static_cast<int>(2 * sizeof(AcrossOperands));
    return with_half(a.delta.element, [&](auto t) {
        return with_state(a.delta.state, [&](auto s) {
            return two ? launch<decltype(t), decltype(s), 2>(a, most, stream)
                       : launch<decltype(t), decltype(s), 1>(a, most, stream);
        });
    });
}

} // namespace batchllm::cuda
