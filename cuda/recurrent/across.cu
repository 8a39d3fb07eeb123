// What goes from chunk to chunk (chunk.h): N, results, S. One chunk needs what the one before has left, so that a
// chunk's time is what one prompt waits for: in two phases,
//     N = U - W S          and beside it    exp(G) q S
//     S of the next chunk  and beside it    the results: + P N
// of which half of the warps have the left side, half the right. A block has one value head of one item and 32 columns
// for each 256 of its threads. The next chunk's operands are copied meanwhile, the next item's too.
#include <cstdlib>

#include "recurrent/chunk.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kColumns = 32; // of S, a part's
constexpr int kPartThreads = 256;

using Rows = Tile<kHeadDim>;
using Weights = Tile<kDeltaChunk>;

// kParts: of a block; kStages: 2: operands are copied a chunk ahead. Less where there is not the memory.
template <int kParts> struct AcrossOperands {
    alignas(128) unsigned char w[kDeltaChunk * Rows::kRowBytes];
    alignas(128) unsigned char queries[kDeltaChunk * Rows::kRowBytes];
    alignas(128) unsigned char keys[kDeltaChunk * Rows::kRowBytes];
    alignas(128) unsigned char p[kDeltaChunk * Weights::kRowBytes];
    alignas(128) unsigned char u[kDeltaChunk * Tile<kParts * kColumns>::kRowBytes];
    float sums[kDeltaChunk]; // G
};
template <int kParts, int kStages> struct AcrossShared {
    AcrossOperands<kParts> operands[kStages];
    alignas(128) unsigned char state[kHeadDim * Tile<kParts * kColumns>::kRowBytes];
    alignas(128) unsigned char changes[kDeltaChunk * Tile<kParts * kColumns>::kRowBytes]; // N
    alignas(128) unsigned char behind[kDeltaChunk *
                                      Tile<kParts * kColumns>::kRowBytes]; // exp(G_last - G) N
};

struct AcrossPlace {
    DeltaItem item;
    int head, column; // column: the first of the block's
};

// A thread's place in the block.
struct AcrossThread {
    bool results; // the warp makes results, not S
    int rows;     // its 16 of the chunk's tokens
    int column;   // the first of its part's, in the block's tiles
    int copier;   // the number of the thread among those of results

    __device__ AcrossThread() {
        const int warp = threadIdx.x / 32, part = threadIdx.x / kPartThreads;
        results = warp % 8 >= 4;
        rows = warp % 4 * 16;
        column = part * kColumns;
        copier = part * (kPartThreads / 2) + threadIdx.x % (kPartThreads / 2);
    }
};

// A chunk's operands, by the threads of results.
template <typename T, int kParts>
__device__ __forceinline__ void copy_operands(const ChunkArguments &c, const AcrossPlace &place,
                                              int first, int thread, AcrossOperands<kParts> *to) {
    constexpr int kThreads = kParts * kPartThreads / 2;
    const DeltaArguments &a = c.delta;
    const int count = min(kDeltaChunk, place.item.token_count - first);
    const int64_t token = int64_t{place.item.token_begin} + first;
    const int64_t w_stride = int64_t{a.value_heads} * kHeadDim, channels = a.channels();
    const int key_head = place.head / (a.value_heads / a.key_heads);
    const T *mixed = mixed_of<T>(c, token);
    const Rows w{shared_address(to->w)}, queries{shared_address(to->queries)},
        keys{shared_address(to->keys)};
    w.template copy<kThreads>(
        thread, static_cast<const T *>(c.w) + token * w_stride + place.head * kHeadDim, w_stride,
        count);
    queries.template copy<kThreads>(thread, mixed + key_head * kHeadDim, channels, count);
    const Tile<kParts * kColumns> u{shared_address(to->u)};
    u.template copy<kThreads>(
        thread, mixed + 2 * a.keys_size() + place.head * kHeadDim + place.column, channels, count);
    keys.template copy<kThreads>(thread, mixed + a.keys_size() + key_head * kHeadDim, channels,
                                 count);
    const Weights p{shared_address(to->p)};
    p.template copy<kThreads>(
        thread, static_cast<const T *>(c.p) + (token * a.value_heads + place.head) * kDeltaChunk,
        int64_t{a.value_heads} * kDeltaChunk, count);
    if (thread < kDeltaChunk) {
        const float2 *gate =
            c.gates + (token + min(thread, count - 1)) * a.value_heads + place.head;
        asm volatile(
            "cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to->sums + thread)),
            "l"(&gate->x)
            : "memory");
    }
}

// 16 rows of a tile times the part's columns of S: of 64 tokens by 32 columns what the warp has.
using TokenSums = float[kColumns / 8][4];
template <typename T, typename Columns>
__device__ __forceinline__ void multiply_by_state(const Rows &rows, const Columns &state,
                                                  const AcrossThread &thread, TokenSums &sums) {
#pragma unroll
    for (int k = 0; k < kHeadDim; k += 16) {
        uint32_t a[4];
        rows.load_a(a, thread.rows, k);
#pragma unroll
        for (int n = 0; n < kColumns; n += 16) {
            uint32_t b[4];
            state.load_b(b, k, thread.column + n);
            mma_sync(sums[n / 8], a, b[0], b[1], T());
            mma_sync(sums[n / 8 + 1], a, b[2], b[3], T());
        }
    }
}

// N = U - known, to shared memory.
template <typename T, typename Columns>
__device__ __forceinline__ void share_changes(const float *decays, const Columns &u,
                                              const Columns &changes, const Columns &behind,
                                              const AcrossThread &thread, const TokenSums &known) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = thread.rows + lane / 4 + 8 * half;
        const float after = exp2_approximate(decays[kDeltaChunk - 1] - decays[row]);
#pragma unroll
        for (int n = 0; n < kColumns / 8; ++n) {
            const int column = thread.column + 8 * n + lane % 4 * 2;
            const uint32_t raw = u.load_pair(row, column);
            const float2 wanted =
                Pair<T>::wide(*reinterpret_cast<const typename Pair<T>::type *>(&raw));
            const float x = wanted.x - known[n][2 * half], y = wanted.y - known[n][2 * half + 1];
            changes.store_pair(row, column, pack(x, y, T()));
            behind.store_pair(row, column, pack(x * after, y * after, T()));
        }
    }
}

// exp(G) results + P N, of the chunk's tokens.
template <typename T, typename Columns> __device__ __forceinline__ void
store_results(const float *decays, const Weights &p, const Columns &changes,
              const AcrossThread &thread, TokenSums &results, T *out, int64_t stride, int count) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float decay = exp2_approximate(decays[thread.rows + lane / 4 + 8 * half]);
#pragma unroll
        for (int n = 0; n < kColumns / 8; ++n) {
            results[n][2 * half] *= decay;
            results[n][2 * half + 1] *= decay;
        }
    }
#pragma unroll
    for (int k = 0; k < kDeltaChunk; k += 16) {
        if (k > thread.rows) break; // later tokens count for nothing
        uint32_t a[4];
        p.load_a(a, thread.rows, k);
#pragma unroll
        for (int n = 0; n < kColumns; n += 16) {
            uint32_t b[4];
            changes.load_b(b, k, thread.column + n);
            mma_sync(results[n / 8], a, b[0], b[1], T());
            mma_sync(results[n / 8 + 1], a, b[2], b[3], T());
        }
    }
    out += thread.column + lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = thread.rows + lane / 4 + 8 * half;
        if (row >= count) continue;
#pragma unroll
        for (int n = 0; n < kColumns / 8; ++n) {
            *reinterpret_cast<uint32_t *>(out + row * stride + 8 * n) =
                pack(results[n][2 * half], results[n][2 * half + 1], T());
        }
    }
}

// The warp's 32 rows of S and its part's columns, in mma's accumulator layout.
using StateRows = float[2][kColumns / 8][4];

template <typename Visit>
__device__ __forceinline__ void visit_state(const AcrossThread &thread, const Visit &visit) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                visit(m, n, 2 * half, 2 * thread.rows + m * 16 + lane / 4 + 8 * half,
                      thread.column + 8 * n + lane % 4 * 2);
            }
        }
    }
}

template <typename S>
__device__ __forceinline__ void load_state(const ChunkArguments &c, const AcrossPlace &place,
                                           const AcrossThread &thread, StateRows &state) {
    const bool continues = place.item.from >= 0;
    const S *from = state_of<S>(c.delta, max(place.item.from, 0), place.head) + place.column;
    visit_state(thread, [&](int m, int n, int e, int row, int column) {
        float2 x = make_float2(0, 0);
        if (continues) x = load_state_pair(from + row * kHeadDim + column);
        state[m][n][e] = x.x;
        state[m][n][e + 1] = x.y;
    });
}

template <typename S>
__device__ __forceinline__ void store_state(const ChunkArguments &c, const AcrossPlace &place,
                                            const AcrossThread &thread, const StateRows &state) {
    S *to = state_of<S>(c.delta, place.item.state, place.head) + place.column;
    visit_state(thread, [&](int m, int n, int e, int row, int column) {
        store_state_pair(to + row * kHeadDim + column, state[m][n][e], state[m][n][e + 1]);
    });
}

template <typename T, typename Columns> __device__ __forceinline__ void
share_state(const Columns &tile, const AcrossThread &thread, const StateRows &state) {
    visit_state(thread, [&](int m, int n, int e, int row, int column) {
        tile.store_pair(row, column, pack(state[m][n][e], state[m][n][e + 1], T()));
    });
}

// S = exp(G_last) S + k^T (exp(G_last - G) N)
template <typename T, typename Columns>
__device__ __forceinline__ void advance_state(const float *decays, const Rows &keys,
                                              const Columns &behind, const AcrossThread &thread,
                                              StateRows &state) {
    const float decay = exp2_approximate(decays[kDeltaChunk - 1]);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) state[m][n][e] *= decay;
        }
    }
#pragma unroll
    for (int k = 0; k < kDeltaChunk; k += 16) {
        uint32_t b[2][4];
#pragma unroll
        for (int n = 0; n < 2; ++n) behind.load_b(b[n], k, thread.column + 16 * n);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            uint32_t a[4];
            keys.load_turned_a(a, 2 * thread.rows + m * 16, k);
#pragma unroll
            for (int n = 0; n < kColumns / 8; ++n) {
                mma_sync(state[m][n], a, b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1], T());
            }
        }
    }
}

template <typename T, typename S, int kParts, int kStages>
__global__ void __launch_bounds__(kParts *kPartThreads, 1)
    across_chunks(const __grid_constant__ ChunkArguments c) {
    using Columns = Tile<kParts * kColumns>;
    extern __shared__ __align__(128) unsigned char memory[];
    auto &shared = *reinterpret_cast<AcrossShared<kParts, kStages> *>(memory);
    const Columns state_tile{shared_address(shared.state)}, changes{shared_address(shared.changes)},
        behind{shared_address(shared.behind)};
    const DeltaArguments &a = c.delta;
    const DeltaLevel level = *a.level;
    constexpr int kBlocks = kHeadDim / (kParts * kColumns); // of a head
    const int each = a.value_heads * kBlocks, count = (level.end - level.chunked) * each;
    const AcrossThread thread;
    const auto place_at = [&](int i) {
        AcrossPlace place;
        place.item = a.items[level.chunked + i / each];
        place.head = i % each / kBlocks;
        place.column = i % kBlocks * kParts * kColumns;
        return place;
    };
    const auto copy = [&](const AcrossPlace &place, int first, int stage) {
        copy_operands<T, kParts>(c, place, first, thread.copier, &shared.operands[stage]);
        copy_async_commit();
    };

    int i = static_cast<int>(blockIdx.x);
    if (i >= count) return;
    AcrossPlace place = place_at(i);
    StateRows state;
    if (thread.results) {
        copy(place, 0, 0);
        copy_async_wait<0>();
    } else {
        load_state<S>(c, place, thread, state);
        share_state<T>(state_tile, thread, state);
    }
    __syncthreads();
    for (int first = 0, stage = 0;;) {
        const bool last = first + kDeltaChunk >= place.item.token_count;
        const int next = i + static_cast<int>(gridDim.x);
        const bool more = !last || next < count;
        AcrossPlace following = place;
        if (last && more) following = place_at(next);
        const int following_first = last ? 0 : first + kDeltaChunk;
        const AcrossOperands<kParts> &operands = shared.operands[stage];
        const Rows w{shared_address(operands.w)}, queries{shared_address(operands.queries)},
            keys{shared_address(operands.keys)};
        TokenSums sums = {};
        StateRows ahead = {}; // the next item's
        if (thread.results) {
            if (kStages > 1 && more) copy(following, following_first, stage ^ 1);
            multiply_by_state<T>(queries, state_tile, thread, sums);
        } else {
            if (last && more) load_state<S>(c, following, thread, ahead);
            multiply_by_state<T>(w, state_tile, thread, sums);
            share_changes<T>(operands.sums, Columns{shared_address(operands.u)}, changes, behind,
                             thread, sums);
        }
        __syncthreads();
        if (thread.results) {
            const int64_t token = int64_t{place.item.token_begin} + first;
            T *out = static_cast<T *>(a.out) + token * a.values_size() + place.head * kHeadDim +
                     place.column;
            store_results<T>(operands.sums, Weights{shared_address(operands.p)}, changes, thread,
                             sums, out, a.values_size(),
                             min(kDeltaChunk, place.item.token_count - first));
            copy_async_wait<0>();
        } else {
            advance_state<T>(operands.sums, keys, behind, thread, state);
            if (last) {
                store_state<S>(c, place, thread, state);
                visit_state(thread, [&](int m, int n, int e, int, int) {
                    state[m][n][e] = ahead[m][n][e];
                    state[m][n][e + 1] = ahead[m][n][e + 1];
                });
            }
            share_state<T>(state_tile, thread, state);
        }
        __syncthreads();
        if (!more) return;
        if (kStages == 1) {
            if (thread.results) {
                copy(following, following_first, 0);
                copy_async_wait<0>();
            }
            __syncthreads();
        } else {
            stage ^= 1;
        }
        if (last) i = next;
        place = following;
        first = following_first;
    }
}

template <typename T, typename S, int kParts, int kStages>
cudaError_t launch(const ChunkArguments &a, cudaStream_t stream) {
    const auto kernel = across_chunks<T, S, kParts, kStages>;
    constexpr auto bytes = static_cast<int>(sizeof(AcrossShared<kParts, kStages>));
    const cudaError_t set =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (set != cudaSuccess) return set;
    // An item has at least one chunk.
    const int64_t most =
        int64_t{a.most_chunks} * a.delta.value_heads * (kHeadDim / (kParts * kColumns));
    const auto blocks = static_cast<unsigned>(std::min<int64_t>(most, a.delta.sms));
    kernel<<<blocks, kParts * kPartThreads, bytes, stream>>>(a);
    return cudaGetLastError();
}

} // namespace

cudaError_t launch_across_chunks(const ChunkArguments &a, cudaStream_t stream) {
    int most = 0;
    if (const cudaError_t code = most_shared(&most); code != cudaSuccess) return code;
    const bool much = most >= static_cast<int>(sizeof(AcrossShared<2, 2>));
    return with_half(a.delta.element, [&](auto t) {
        return with_state(a.delta.state, [&](auto s) {
            // To be compared; one of them stays.
            if (const char *parts = std::getenv("ACROSS_PARTS"); much && parts && *parts == '1') {
                return launch<decltype(t), decltype(s), 1, 2>(a, stream);
            }
            return much ? launch<decltype(t), decltype(s), 2, 2>(a, stream)
                        : launch<decltype(t), decltype(s), 1, 1>(a, stream);
        });
    });
}

} // namespace batchllm::cuda
