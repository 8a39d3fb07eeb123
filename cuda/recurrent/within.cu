// What of a chunk depends on no state: A, T = (1 + A)^-1, W, U and P (chunk.h). A block has one chunk of one value
// head. Half of its warps make A and then W, the others P and U; each has 16 of the rows. All of them make T, in f32.
#include "device/launch.cuh"
#include "recurrent/chunk.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kAcross = kStateChunk + 4;  // floats from row to row of A, which is kept transposed
constexpr int kInverse = kStateChunk + 8; // of T
constexpr int kBlock = 16;                // rows of T that one thread finds
constexpr int kHalf = kStateChunk / 2;

using Rows = Tile<kHeadDim>;

struct WithinShared {
    float sums[kStateChunk];  // G
    float rates[kStateChunk]; // 0 beyond the chunk's tokens
    float scales
        [2][kStateChunk]; // what T is multiplied by, from the right: rate exp(G) for W, rate for U
    alignas(128) float across[kStateChunk * kAcross];
    alignas(128) float between[kHalf * kHalf];
    alignas(128) unsigned char keys[kStateChunk * Rows::kRowBytes];
    alignas(128) unsigned char values[kStateChunk * Rows::kRowBytes];
    union {
        alignas(128) unsigned char queries[kStateChunk * Rows::kRowBytes];
        alignas(128) float inverse[kStateChunk * kInverse];
    };
};

// G and the rates, to shared memory; exp(G) and exp(G_last - G) to global memory, in their place.
__device__ __forceinline__ void read_gates(const ChunkArguments &c, const ChunkPlace &place,
                                           int head, WithinShared *shared) {
    const int i = threadIdx.x;
    if (i >= 32) return; // one warp, a lane two tokens
    const float2 *at = c.gates + (place.token + 2 * i) * c.delta.value_heads + head;
    float2 gates[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
        const bool valid = 2 * i + e < place.count;
        gates[e] = valid ? at[int64_t{e} * c.delta.value_heads] : make_float2(0, 0);
    }
    const float2 both = sum_gates(c, place, head, gates);
    const float sums[2] = {both.x, both.y};
#pragma unroll
    for (int e = 0; e < 2; ++e) {
        const int token = 2 * i + e;
        shared->sums[token] = sums[e];
        shared->rates[token] = gates[e].y;
        shared->scales[0][token] = gates[e].y * exp2_approximate(sums[e]);
        shared->scales[1][token] = gates[e].y;
    }
}

// The warp's rows of A, which is kept transposed, or of P: `rows` times the keys' transpose.
template <typename T>
__device__ __forceinline__ void multiply_within(const ChunkArguments &c, const ChunkPlace &place,
                                                int head, WithinShared *shared, const Rows &rows,
                                                const Rows &keys, bool weights) {
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    float products[4][2][4] = {};
#pragma unroll 2
    for (int k = 0; k < kHeadDim; k += 16) {
        uint32_t a[4];
        rows.load_a(a, warp * 16, k);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            if (n > warp) break; // later tokens count for nothing
            uint32_t b[4];
            keys.load_transposed_b(b, k, n * 16);
            mma_sync(products[n][0], a, b[0], b[1], T());
            mma_sync(products[n][1], a, b[2], b[3], T());
        }
    }
    T *p = static_cast<T *>(c.p) + (place.token * c.delta.value_heads + head) * kStateChunk;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        if (n > warp) break;
#pragma unroll
        for (int part = 0; part < 4; ++part) { // half, and row or eight rows on
            const int i = warp * 16 + lane / 4 + part % 2 * 8;
            const int j = n * 16 + part / 2 * 8 + lane % 4 * 2;
            float pair[2];
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const bool counts = weights ? j + e <= i : j + e < i;
                const float decay =
                    counts ? exp2_approximate(shared->sums[i] - shared->sums[j + e]) : 0.0f;
                pair[e] = decay * products[n][part / 2][part % 2 * 2 + e];
            }
            if (!weights) {
                const float rate = shared->rates[i];
                shared->across[j * kAcross + i] = rate * pair[0];
                shared->across[(j + 1) * kAcross + i] = rate * pair[1];
            } else if (i < place.count) {
                *reinterpret_cast<uint32_t *>(p + int64_t{i} * c.delta.value_heads * kStateChunk +
                                              j) = pack(pair[0], pair[1], T());
            }
        }
    }
}

// The blocks on T's diagonal by forward substitution: a thread has a column of one, or of the zeros beside it that are
// read.
__device__ __forceinline__ void invert_blocks(WithinShared *shared, int thread) {
    const int begin = thread / 32 * kBlock, column = thread % 32;
    if (begin >= kStateChunk) return;
    if (column >= kBlock) {
        if (begin % kHalf != 0) return;
#pragma unroll
        for (int r = 0; r < kBlock; ++r) {
            shared->inverse[(begin + r) * kInverse + begin + column] = 0;
        }
        return;
    }
    float found[kBlock];
#pragma unroll
    for (int r = 0; r < kBlock; ++r) found[r] = r == column ? 1.0f : 0.0f;
    const float4 *across =
        reinterpret_cast<const float4 *>(shared->across + begin * kAcross + begin);
#pragma unroll
    for (int k = 0; k < kBlock; ++k) {
        shared->inverse[(begin + k) * kInverse + begin + column] = found[k];
        float a[kBlock];
#pragma unroll
        for (int q = (k + 1) / 4; q < kBlock / 4; ++q) {
            const float4 four = across[k * (kAcross / 4) + q];
            a[4 * q] = four.x, a[4 * q + 1] = four.y, a[4 * q + 2] = four.z, a[4 * q + 3] = four.w;
        }
#pragma unroll
        for (int r = k + 1; r < kBlock; ++r) found[r] -= a[r] * found[k];
    }
}

// Of T's two blocks of kSize by kSize on the diagonal from `begin` on the one below the first and left of the second:
// - second A first, A's block of that place. A thread has kEach rows of one column; all of the block call this.
template <int kSize, int kEach> __device__ __forceinline__ void
join_blocks(WithinShared *shared, int begin, int thread, float *between) {
    const int column = thread % kSize, row = thread / kSize * kEach, below = begin + kSize;
    struct alignas(4 * kEach) Few {
        float x[kEach];
    };
    const float *inverse = shared->inverse;
    float sums[kEach] = {};
#pragma unroll 8
    for (int k = 0; k < kSize; ++k) {
        const float first = inverse[(begin + k) * kInverse + begin + column];
        const Few a =
            *reinterpret_cast<const Few *>(shared->across + (begin + k) * kAcross + below + row);
#pragma unroll
        for (int r = 0; r < kEach; ++r) sums[r] += a.x[r] * first;
    }
#pragma unroll
    for (int r = 0; r < kEach; ++r) between[(row + r) * kSize + column] = sums[r];
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kEach; ++r) sums[r] = 0;
#pragma unroll 2
    for (int k = 0; k < kSize; k += 4) {
        float middle[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) middle[e] = between[(k + e) * kSize + column];
#pragma unroll
        for (int r = 0; r < kEach; ++r) {
            const float4 second = *reinterpret_cast<const float4 *>(
                inverse + (below + row + r) * kInverse + below + k);
            sums[r] += second.x * middle[0] + second.y * middle[1] + second.z * middle[2] +
                       second.w * middle[3];
        }
    }
#pragma unroll
    for (int r = 0; r < kEach; ++r) {
        shared->inverse[(below + row + r) * kInverse + begin + column] = -sums[r];
    }
}

// T = (1 + A)^-1. Of the zeros above its diagonal those that are not read are not written.
__device__ __forceinline__ void invert(WithinShared *shared, int thread) {
    invert_blocks(shared, thread);
    __syncthreads();
    const int half = thread / (kThreads / 2);
    join_blocks<kBlock, 2>(shared, half * kHalf, thread % (kThreads / 2),
                           shared->between + half * kBlock * kBlock);
    __syncthreads();
    join_blocks<kHalf, 4>(shared, 0, thread, shared->between);
}

// The warp's rows of T times `scales` and `rows`; to `out`.
template <typename T>
__device__ __forceinline__ void apply_inverse(const WithinShared &shared, const float *scales,
                                              const Rows &rows, int count, T *out, int64_t stride) {
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    constexpr int kColumns = kHeadDim / 2; // at a time
    uint32_t a[kStateChunk / 16][4];
#pragma unroll
    for (int k = 0; k < kStateChunk / 16; ++k) {
        if (k > warp) break;
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            const int i = warp * 16 + lane / 4 + part % 2 * 8;
            const int j = k * 16 + lane % 4 * 2 + part / 2 * 8;
            const float2 x = *reinterpret_cast<const float2 *>(shared.inverse + i * kInverse + j);
            const float2 scale = *reinterpret_cast<const float2 *>(scales + j);
            a[k][part] = pack(x.x * scale.x, x.y * scale.y, T());
        }
    }
#pragma unroll 1
    for (int begin = 0; begin < kHeadDim; begin += kColumns) {
        float sums[kColumns / 8][4] = {};
#pragma unroll
        for (int k = 0; k < kStateChunk / 16; ++k) {
            if (k > warp) break;
#pragma unroll
            for (int n = 0; n < kColumns; n += 16) {
                uint32_t b[4];
                rows.load_b(b, k * 16, begin + n);
                mma_sync(sums[n / 8], a[k], b[0], b[1], T());
                mma_sync(sums[n / 8 + 1], a[k], b[2], b[3], T());
            }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = warp * 16 + lane / 4 + 8 * half;
            if (row >= count) continue;
            T *to = out + row * stride + begin + lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < kColumns / 8; ++n) {
                *reinterpret_cast<uint32_t *>(to + 8 * n) =
                    pack(sums[n][2 * half], sums[n][2 * half + 1], T());
            }
        }
    }
}

template <typename T> __global__ void __launch_bounds__(kThreads, 3)
    within_chunks(const __grid_constant__ ChunkArguments c) {
    extern __shared__ __align__(128) unsigned char memory[];
    auto &shared = *reinterpret_cast<WithinShared *>(memory);
    const DeltaArguments &a = c.delta;
    const StateLevel &level = *a.level;
    int thread = static_cast<int>(threadIdx.x);
    int head = static_cast<int>(blockIdx.y);
    const int key_head = head / (a.value_heads / a.key_heads);
    const Rows keys{shared_address(shared.keys)}, queries{shared_address(shared.queries)},
        values{shared_address(shared.values)};
    for (int i = level.chunk_begin + static_cast<int>(blockIdx.x); i < level.chunk_end;
         i += gridDim.x) {
        const ChunkPlace place(c, c.chunks[i]);
        T *mixed = mixed_of<T>(c, place.token);
        queries.copy<kThreads>(thread, mixed + key_head * kHeadDim, a.channels(), place.count);
        keys.copy<kThreads>(thread, mixed + a.keys_size() + key_head * kHeadDim, a.channels(),
                            place.count);
        copy_async_commit();
        T *own = mixed + 2 * a.keys_size() + head * kHeadDim;
        values.copy<kThreads>(thread, own, a.channels(), place.count);
        copy_async_commit();
        read_gates(c, place, head, &shared);
        copy_async_wait<1>();
        __syncthreads();
        const auto second = [&] { return thread >= kThreads / 2; }; // P and U
        multiply_within<T>(c, place, head, &shared, second() ? queries : keys, keys, second());
        __syncthreads();
        asm volatile("" : "+r"(head), "+r"(thread)); // addresses are not kept all the time
        invert(&shared, thread);
        copy_async_wait<0>(); // values
        __syncthreads();
        const int64_t w_stride = int64_t{a.value_heads} * kHeadDim;
        own = mixed_of<T>(c, place.token) + 2 * a.keys_size() + head * kHeadDim;
        T *w = static_cast<T *>(c.w) + place.token * w_stride + head * kHeadDim;
        apply_inverse<T>(shared, shared.scales[second()], second() ? values : keys, place.count,
                         second() ? own : w, second() ? int64_t{a.channels()} : w_stride);
        __syncthreads(); // before the next chunk's rows come
    }
}

} // namespace

cudaError_t launch_within_chunks(const ChunkArguments &a, cudaStream_t stream) {
    if (a.delta.sm90) return launch_within_sm90(a, stream);
    const dim3 grid(static_cast<unsigned>(a.chunk_count),
                    static_cast<unsigned>(a.delta.value_heads));
    return with_half(a.delta.element, [&](auto t) {
        return launch_with_shared(within_chunks<decltype(t)>, grid, kThreads,
                                  static_cast<int>(sizeof(WithinShared)), stream, a);
    });
}

} // namespace batchllm::cuda
