// What of a chunk depends on no state: A, its inverse T, W, U and P (chunk.h). A block has one chunk of one value
// head; of its four warps each has 16 of the rows. T is found in f32, a thread a column.
#include "recurrent/chunk.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kAcross = kDeltaChunk + 4;  // floats from row to row of A, which is kept turned over
constexpr int kInverse = kDeltaChunk + 8; // of T
constexpr int kBlock = 16;                // rows of T that are found together

using Rows = Tile<kHeadDim>;

struct WithinShared {
    float sums[kDeltaChunk];  // G
    float rates[kDeltaChunk]; // 0 beyond the chunk's tokens
    alignas(128) float across[kDeltaChunk * kAcross];
    // Later staging for rows of W and U.
    alignas(128) unsigned char keys[kDeltaChunk * Rows::kRowBytes];
    alignas(128) unsigned char values[kDeltaChunk * Rows::kRowBytes];
    union {
        alignas(128) unsigned char queries[kDeltaChunk * Rows::kRowBytes];
        alignas(128) float inverse[kDeltaChunk * kInverse];
    };
};
static_assert(sizeof(WithinShared::across) >= size_t{kDeltaChunk} * Rows::kRowBytes);

// G and the rates, to shared memory and, in place of the decays, to global memory.
__device__ __forceinline__ void sum_gates(const ChunkArguments &c, const ChunkPlace &place,
                                          int head, WithinShared *shared) {
    const int i = threadIdx.x;
    float2 *at = c.gates + (place.token + i) * c.delta.value_heads + head;
    const float2 gate = i < place.count ? *at : make_float2(0, 0);
    if (i < kDeltaChunk) {
        shared->across[i] = gate.x;
        shared->rates[i] = gate.y;
    }
    __syncthreads();
    if (i < kDeltaChunk) {
        float sum = 0;
#pragma unroll 16
        for (int j = 0; j < kDeltaChunk; ++j) sum += j <= i ? shared->across[j] : 0.0f;
        shared->sums[i] = sum;
        if (i < place.count) at->x = sum;
    }
}

// A, turned over, and P, of the warp's rows.
template <typename T> __device__ __forceinline__ void
multiply_within(const ChunkArguments &c, const ChunkPlace &place, int head, WithinShared *shared) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Rows keys{shared_address(shared->keys)}, queries{shared_address(shared->queries)};
    float key_key[4][2][4] = {}, query_key[4][2][4] = {};
#pragma unroll 2
    for (int k = 0; k < kHeadDim; k += 16) {
        uint32_t of_key[4], of_query[4];
        keys.load_a(of_key, warp * 16, k);
        queries.load_a(of_query, warp * 16, k);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            if (n > warp) break; // later tokens count for nothing
            uint32_t b[4];
            keys.load_turned_b(b, k, n * 16);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                mma_sync(key_key[n][half], of_key, b[2 * half], b[2 * half + 1], T());
                mma_sync(query_key[n][half], of_query, b[2 * half], b[2 * half + 1], T());
            }
        }
    }
    T *p = static_cast<T *>(c.p) + (place.token * c.delta.value_heads + head) * kDeltaChunk;
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
                const float decay =
                    j + e <= i ? exp2_approximate(shared->sums[i] - shared->sums[j + e]) : 0.0f;
                pair[e] = decay * query_key[n][part / 2][part % 2 * 2 + e];
                shared->across[(j + e) * kAcross + i] =
                    j + e < i ? shared->rates[i] * decay * key_key[n][part / 2][part % 2 * 2 + e]
                              : 0.0f;
            }
            if (i < place.count) {
                *reinterpret_cast<uint32_t *>(p + int64_t{i} * c.delta.value_heads * kDeltaChunk +
                                              j) = pack(pair[0], pair[1], T());
            }
        }
    }
}

// T by forward substitution. Of its columns j the rows of the blocks above j are not written: they are zeros, and
// not read.
__device__ __forceinline__ void invert(WithinShared *shared) {
    const int column = threadIdx.x;
    if (column >= kDeltaChunk) return;
    const int first = column / 32 * 32; // of the warp's columns
    float *inverse = shared->inverse + column;
    for (int row = first; row < kDeltaChunk; row += kBlock) {
        float found[kBlock];
#pragma unroll
        for (int r = 0; r < kBlock; ++r) found[r] = row + r == column ? 1.0f : 0.0f;
        const float4 *across = reinterpret_cast<const float4 *>(shared->across + row);
#pragma unroll 4
        for (int k = first; k < row; ++k) {
            const float above = inverse[k * kInverse];
#pragma unroll
            for (int q = 0; q < kBlock / 4; ++q) {
                const float4 a = across[k * (kAcross / 4) + q];
                found[4 * q] -= a.x * above, found[4 * q + 1] -= a.y * above;
                found[4 * q + 2] -= a.z * above, found[4 * q + 3] -= a.w * above;
            }
        }
#pragma unroll
        for (int k = 0; k < kBlock; ++k) {
            inverse[(row + k) * kInverse] = found[k];
            float a[kBlock];
#pragma unroll
            for (int q = (k + 1) / 4; q < kBlock / 4; ++q) {
                const float4 four = across[(row + k) * (kAcross / 4) + q];
                a[4 * q] = four.x, a[4 * q + 1] = four.y, a[4 * q + 2] = four.z;
                a[4 * q + 3] = four.w;
            }
#pragma unroll
            for (int r = k + 1; r < kBlock; ++r) found[r] -= a[r] * found[k];
        }
    }
}

// The warp's rows of T times rate (and exp(G), where `decayed`), times `rows`; to `out`.
template <typename T> __device__ __forceinline__ void apply_inverse(const WithinShared &shared,
                                                                    const Rows &rows, bool decayed,
                                                                    const Rows &staged, int count,
                                                                    T *out, int64_t stride) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float sums[kHeadDim / 8][4] = {};
    for (int k = 0; k <= warp * 16; k += 16) {
        uint32_t a[4];
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            const int i = warp * 16 + lane / 4 + part % 2 * 8;
            const int j = k + lane % 4 * 2 + part / 2 * 8;
            const float2 x = *reinterpret_cast<const float2 *>(shared.inverse + i * kInverse + j);
            float scale[2];
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                scale[e] = shared.rates[j + e];
                if (decayed) scale[e] *= exp2_approximate(shared.sums[j + e]);
            }
            a[part] = pack(x.x * scale[0], x.y * scale[1], T());
        }
#pragma unroll
        for (int n = 0; n < kHeadDim; n += 16) {
            uint32_t b[4];
            rows.load_b(b, k, n);
            mma_sync(sums[n / 8], a, b[0], b[1], T());
            mma_sync(sums[n / 8 + 1], a, b[2], b[3], T());
        }
    }
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            staged.store_pair(warp * 16 + lane / 4 + 8 * half, 8 * n + lane % 4 * 2,
                              pack(sums[n][2 * half], sums[n][2 * half + 1], T()));
        }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 16 * Rows::kPieces / 32; ++i) {
        const int row = warp * 16 + i * 2 + lane / 16, piece = lane % 16;
        if (row < count) {
            *reinterpret_cast<uint4 *>(out + row * stride + piece * 8) =
                staged.load_piece(row, piece);
        }
    }
    __syncwarp();
}

template <typename T> __global__ void __launch_bounds__(kThreads)
    within_chunks(const __grid_constant__ ChunkArguments c) {
    extern __shared__ __align__(128) unsigned char memory[];
    auto &shared = *reinterpret_cast<WithinShared *>(memory);
    const DeltaArguments &a = c.delta;
    const DeltaLevel level = *a.level;
    const int head = static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x);
    const int key_head = head / (a.value_heads / a.key_heads);
    const Rows keys{shared_address(shared.keys)}, queries{shared_address(shared.queries)},
        values{shared_address(shared.values)}, staged{shared_address(shared.across)};
    for (int i = level.chunk_begin + static_cast<int>(blockIdx.x); i < level.chunk_end;
         i += gridDim.x) {
        const ChunkPlace place(c, c.chunks[i]);
        T *mixed = mixed_of<T>(c, place.token);
        queries.copy<kThreads>(thread, mixed + key_head * kHeadDim, a.channels(), place.count);
        keys.copy<kThreads>(thread, mixed + a.keys_size() + key_head * kHeadDim, a.channels(),
                            place.count);
        T *own = mixed + 2 * a.keys_size() + head * kHeadDim;
        values.copy<kThreads>(thread, own, a.channels(), place.count);
        copy_async_commit();
        sum_gates(c, place, head, &shared);
        copy_async_wait<0>();
        __syncthreads();
        multiply_within<T>(c, place, head, &shared);
        __syncthreads();
        invert(&shared);
        __syncthreads();
        const int64_t w_stride = int64_t{a.value_heads} * kHeadDim;
        apply_inverse<T>(shared, keys, true, staged, place.count,
                         static_cast<T *>(c.w) + place.token * w_stride + head * kHeadDim,
                         w_stride);
        apply_inverse<T>(shared, values, false, staged, place.count, own, a.channels());
        __syncthreads(); // before the next chunk's rows come
    }
}

} // namespace

cudaError_t launch_within_chunks(const ChunkArguments &a, cudaStream_t stream) {
    const dim3 grid(static_cast<unsigned>(a.most_chunks),
                    static_cast<unsigned>(a.delta.value_heads));
    return with_half(a.delta.element, [&](auto t) {
        const auto kernel = within_chunks<decltype(t)>;
        constexpr auto bytes = static_cast<int>(sizeof(WithinShared));
        const cudaError_t set =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
        if (set != cudaSuccess) return set;
        kernel<<<grid, kThreads, bytes, stream>>>(a);
        return cudaGetLastError();
    });
}

} // namespace batchllm::cuda
