// What goes from chunk to chunk (chunk.h): N, results, S. A block has one value head of one item and 32 of its
// columns, S in its accumulators: of four warps each has 32 rows of S, or 16 of the chunk's tokens. A chunk's W and q
// are copied while the results of the one before are made, its k and P while N is.
#include "recurrent/chunk.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kColumns = 32; // of S

using Rows = Tile<kHeadDim>;
using Weights = Tile<kDeltaChunk>;
using Columns = Tile<kColumns>;

struct AcrossShared {
    alignas(128) unsigned char w[kDeltaChunk * Rows::kRowBytes];
    alignas(128) unsigned char queries[kDeltaChunk * Rows::kRowBytes];
    alignas(128) unsigned char keys[kDeltaChunk * Rows::kRowBytes];
    alignas(128) unsigned char p[kDeltaChunk * Weights::kRowBytes];
    alignas(128) unsigned char state[kHeadDim * Columns::kRowBytes];
    alignas(128) unsigned char changes[kDeltaChunk * Columns::kRowBytes]; // N
    alignas(128) unsigned char behind[kDeltaChunk * Columns::kRowBytes];  // exp(G_last - G) N
};

struct AcrossTiles {
    Rows w, queries, keys;
    Weights p;
    Columns state, changes, behind;
    __device__ explicit AcrossTiles(AcrossShared &shared)
        : w{shared_address(shared.w)}, queries{shared_address(shared.queries)},
          keys{shared_address(shared.keys)}, p{shared_address(shared.p)}, state{shared_address(
                                                                              shared.state)},
          changes{shared_address(shared.changes)}, behind{shared_address(shared.behind)} {}
};

struct AcrossPlace {
    DeltaItem item;
    int head, key_head, column; // the first of the block's
};

// The tokens of a chunk and what they have of the decays.
struct AcrossChunk {
    int64_t token;
    int count;
    float last;    // G of the last
    float sums[2]; // G of the thread's two tokens
    __device__ AcrossChunk(const ChunkArguments &c, const AcrossPlace &place, int first)
        : token(int64_t{place.item.token_begin} + first),
          count(min(kDeltaChunk, place.item.token_count - first)) {
        const auto sum = [&](int i) {
            return c.gates[(token + min(i, count - 1)) * c.delta.value_heads + place.head].x;
        };
        const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
        last = sum(count - 1);
        sums[0] = sum(row);
        sums[1] = sum(row + 8);
    }
};

template <typename T> __device__ __forceinline__ void
copy_first(const ChunkArguments &c, const AcrossPlace &place, const AcrossTiles &tiles, int first) {
    const DeltaArguments &a = c.delta;
    const int count = place.item.token_count - first;
    if (count > 0) {
        const int64_t token = int64_t{place.item.token_begin} + first;
        const int64_t w_stride = int64_t{a.value_heads} * kHeadDim;
        tiles.w.copy<kThreads>(static_cast<const T *>(c.w) + token * w_stride +
                                   place.head * kHeadDim,
                               w_stride, count);
        tiles.queries.copy<kThreads>(static_cast<const T *>(mixed_of<T>(c, token)) +
                                         place.key_head * kHeadDim,
                                     a.channels(), count);
    }
    copy_async_commit();
}

template <typename T>
__device__ __forceinline__ void copy_second(const ChunkArguments &c, const AcrossPlace &place,
                                            const AcrossTiles &tiles, int first) {
    const DeltaArguments &a = c.delta;
    const int count = place.item.token_count - first;
    if (count > 0) {
        const int64_t token = int64_t{place.item.token_begin} + first;
        tiles.keys.copy<kThreads>(static_cast<const T *>(mixed_of<T>(c, token)) + a.keys_size() +
                                      place.key_head * kHeadDim,
                                  a.channels(), count);
        tiles.p.copy<kThreads>(static_cast<const T *>(c.p) +
                                   (token * a.value_heads + place.head) * kDeltaChunk,
                               int64_t{a.value_heads} * kDeltaChunk, count);
    }
    copy_async_commit();
}

// The thread's pairs of U: [columns / 8][token, eight tokens on].
template <typename T> __device__ __forceinline__ void load_u(const ChunkArguments &c,
                                                             const AcrossPlace &place, int first,
                                                             uint32_t (&u)[kColumns / 8][2]) {
    const int count = place.item.token_count - first;
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    const T *from = mixed_of<T>(c, int64_t{place.item.token_begin} + first) +
                    2 * c.delta.keys_size() + place.head * kHeadDim + place.column +
                    threadIdx.x % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const bool valid = row + 8 * half < count;
        const T *at = from + (row + 8 * half) * int64_t{c.delta.channels()};
#pragma unroll
        for (int n = 0; n < kColumns / 8; ++n) {
            u[n][half] = valid ? *reinterpret_cast<const uint32_t *>(at + 8 * n) : 0;
        }
    }
}

// results = exp(G) q S; N = U - W S, to shared memory.
template <typename T> __device__ __forceinline__ void
multiply_by_state(const AcrossTiles &tiles, const AcrossChunk &chunk,
                  const uint32_t (&u)[kColumns / 8][2], float (&results)[kColumns / 8][4]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float known[kColumns / 8][4] = {};
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) results[n][e] = 0;
    }
#pragma unroll 4
    for (int k = 0; k < kHeadDim; k += 16) {
        uint32_t w[4], q[4];
        tiles.w.load_a(w, warp * 16, k);
        tiles.queries.load_a(q, warp * 16, k);
#pragma unroll
        for (int n = 0; n < kColumns; n += 16) {
            uint32_t b[4];
            tiles.state.load_b(b, k, n);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                mma_sync(known[n / 8 + half], w, b[2 * half], b[2 * half + 1], T());
                mma_sync(results[n / 8 + half], q, b[2 * half], b[2 * half + 1], T());
            }
        }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float decay = exp2_approximate(chunk.sums[half]);
        const float after = exp2_approximate(chunk.last - chunk.sums[half]);
        const int row = warp * 16 + lane / 4 + 8 * half;
#pragma unroll
        for (int n = 0; n < kColumns / 8; ++n) {
            results[n][2 * half] *= decay;
            results[n][2 * half + 1] *= decay;
            const float2 wanted =
                Pair<T>::wide(*reinterpret_cast<const typename Pair<T>::type *>(&u[n][half]));
            const float x = wanted.x - known[n][2 * half], y = wanted.y - known[n][2 * half + 1];
            const int column = 8 * n + lane % 4 * 2;
            tiles.changes.store_pair(row, column, pack(x, y, T()));
            tiles.behind.store_pair(row, column, pack(x * after, y * after, T()));
        }
    }
}

// results + P N, of the chunk's tokens.
template <typename T>
__device__ __forceinline__ void store_results(const ChunkArguments &c, const AcrossPlace &place,
                                              const AcrossTiles &tiles, const AcrossChunk &chunk,
                                              float (&results)[kColumns / 8][4]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int k = 0; k <= warp * 16; k += 16) {
        uint32_t p[4];
        tiles.p.load_a(p, warp * 16, k);
#pragma unroll
        for (int n = 0; n < kColumns; n += 16) {
            uint32_t b[4];
            tiles.changes.load_b(b, k, n);
            mma_sync(results[n / 8], p, b[0], b[1], T());
            mma_sync(results[n / 8 + 1], p, b[2], b[3], T());
        }
    }
    const int64_t stride = c.delta.values_size();
    T *out = static_cast<T *>(c.delta.out) + chunk.token * stride + place.head * kHeadDim +
             place.column + lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = warp * 16 + lane / 4 + 8 * half;
        if (row >= chunk.count) continue;
#pragma unroll
        for (int n = 0; n < kColumns / 8; ++n) {
            *reinterpret_cast<uint32_t *>(out + row * stride + 8 * n) =
                pack(results[n][2 * half], results[n][2 * half + 1], T());
        }
    }
}

// The warp's rows of S in mma's accumulator layout.
using StateRows = float[2][kColumns / 8][4];

template <typename Visit> __device__ __forceinline__ void visit_state(const Visit &visit) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                visit(m, n, 2 * half, warp * 32 + m * 16 + lane / 4 + 8 * half,
                      8 * n + lane % 4 * 2);
            }
        }
    }
}

template <typename T>
__device__ __forceinline__ void share_state(const AcrossTiles &tiles, const StateRows &state) {
    visit_state([&](int m, int n, int e, int row, int column) {
        tiles.state.store_pair(row, column, pack(state[m][n][e], state[m][n][e + 1], T()));
    });
}

// S = exp(G_last) S + k^T (exp(G_last - G) N)
template <typename T> __device__ __forceinline__ void
advance_state(const AcrossTiles &tiles, const AcrossChunk &chunk, StateRows &state) {
    const int warp = threadIdx.x / 32;
    const float decay = exp2_approximate(chunk.last);
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
        for (int n = 0; n < 2; ++n) tiles.behind.load_b(b[n], k, 16 * n);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            uint32_t a[4];
            tiles.keys.load_turned_a(a, warp * 32 + m * 16, k);
#pragma unroll
            for (int n = 0; n < kColumns / 8; ++n) {
                mma_sync(state[m][n], a, b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1], T());
            }
        }
    }
}

template <typename T, typename S> __device__ __forceinline__ void
run_item(const ChunkArguments &c, const AcrossPlace &place, const AcrossTiles &tiles) {
    copy_first<T>(c, place, tiles, 0);
    copy_second<T>(c, place, tiles, 0);
    uint32_t u[kColumns / 8][2];
    load_u<T>(c, place, 0, u);
    StateRows state = {};
    if (place.item.from >= 0) {
        const S *from = state_of<S>(c.delta, place.item.from, place.head) + place.column;
        visit_state([&](int m, int n, int e, int row, int column) {
            const float2 x = load_state_pair(from + row * kHeadDim + column);
            state[m][n][e] = x.x;
            state[m][n][e + 1] = x.y;
        });
    }
    share_state<T>(tiles, state);
    copy_async_wait<1>();
    __syncthreads();
    for (int first = 0; first < place.item.token_count; first += kDeltaChunk) {
        const AcrossChunk chunk(c, place, first);
        float results[kColumns / 8][4];
        multiply_by_state<T>(tiles, chunk, u, results);
        copy_async_wait<0>(); // k and P
        __syncthreads();
        copy_first<T>(c, place, tiles, first + kDeltaChunk);
        load_u<T>(c, place, first + kDeltaChunk, u);
        store_results<T>(c, place, tiles, chunk, results);
        advance_state<T>(tiles, chunk, state);
        share_state<T>(tiles, state);
        copy_async_wait<0>(); // the next chunk's W and q
        __syncthreads();
        copy_second<T>(c, place, tiles, first + kDeltaChunk);
    }
    S *to = state_of<S>(c.delta, place.item.state, place.head) + place.column;
    visit_state([&](int m, int n, int e, int row, int column) {
        store_state_pair(to + row * kHeadDim + column, state[m][n][e], state[m][n][e + 1]);
    });
}

template <typename T, typename S> __global__ void __launch_bounds__(kThreads)
    across_chunks(const __grid_constant__ ChunkArguments c) {
    extern __shared__ __align__(128) unsigned char memory[];
    const AcrossTiles tiles(*reinterpret_cast<AcrossShared *>(memory));
    const DeltaArguments &a = c.delta;
    const DeltaLevel level = *a.level;
    constexpr int kParts = kHeadDim / kColumns;
    const int64_t each = int64_t{a.value_heads} * kParts;
    const int64_t count = (level.end - level.chunked) * each;
    for (int64_t i = blockIdx.x; i < count; i += gridDim.x) {
        const int part = static_cast<int>(i % each);
        AcrossPlace place;
        place.item = a.items[level.chunked + i / each];
        place.head = part / kParts;
        place.key_head = place.head / (a.value_heads / a.key_heads);
        place.column = part % kParts * kColumns;
        run_item<T, S>(c, place, tiles);
    }
}

} // namespace

cudaError_t launch_across_chunks(const ChunkArguments &a, cudaStream_t stream) {
    // An item has at least one chunk.
    const int64_t most = int64_t{a.most_chunks} * a.delta.value_heads * (kHeadDim / kColumns);
    const auto blocks = static_cast<unsigned>(std::min<int64_t>(most, int64_t{a.delta.sms} * 64));
    return with_half(a.delta.element, [&](auto t) {
        return with_state(a.delta.state, [&](auto s) {
            const auto kernel = across_chunks<decltype(t), decltype(s)>;
            constexpr auto bytes = static_cast<int>(sizeof(AcrossShared));
            const cudaError_t set =
                cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
            if (set != cudaSuccess) return set;
            kernel<<<blocks, kThreads, bytes, stream>>>(a);
            return cudaGetLastError();
        });
    });
}

} // namespace batchllm::cuda
