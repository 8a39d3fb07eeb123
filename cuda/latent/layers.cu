// What lies around attention over latents. Keys and queries are bound by memory; the products of heads are tiles of 64 tokens
// by 64 rows on tensor cores, in f32 plain.
#include "attention/mma.cuh"
#include "elementwise/element.cuh"
#include "latent/latent.h"

namespace batchllm::cuda {
namespace {

// ---- y[t, h] = x[t, h] W[h]^T ----

constexpr int kTile = 64, kDepth = 64, kProductThreads = 128;

// The address of 16-byte chunk c of row r of a tile of 128-byte rows.
__device__ __forceinline__ uint32_t chunk_at(uint32_t tile, int r, int c) {
    return tile + static_cast<uint32_t>(r * 128 + ((c ^ (r % 8)) * 16));
}

// Rows [first, first + 64) and columns [k, k + 64) of a matrix, zeros beyond its ends.
template <typename T> __device__ __forceinline__ void
fetch(uint32_t tile, const T *from, int64_t stride, int first, int rows, int k, int columns) {
    for (int i = threadIdx.x; i < kTile * (kDepth / 8); i += kProductThreads) {
        const int r = i / 8, c = i % 8;
        const bool valid = first + r < rows && k + c * 8 < columns;
        copy_async(chunk_at(tile, r, c), from + (valid ? (first + r) * stride + k + c * 8 : 0),
                   valid);
    }
}

template <typename T> __global__ void __launch_bounds__(kProductThreads)
    head_products(const __grid_constant__ HeadProductArguments a) {
    __shared__ __align__(128) T tiles[2][2][kTile * kDepth];
    const int head = blockIdx.z, row0 = blockIdx.y * kTile, token0 = blockIdx.x * kTile;
    const T *x = static_cast<const T *>(a.x) + head * a.x_head;
    const T *w = static_cast<const T *>(a.w) + int64_t{head} * a.rows * a.columns;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int steps = (a.columns + kDepth - 1) / kDepth;
    const auto load = [&](int step) {
        const uint32_t to_x = shared_address(tiles[step % 2][0]);
        const uint32_t to_w = shared_address(tiles[step % 2][1]);
        fetch(to_x, x, a.x_stride, token0, a.tokens, step * kDepth, a.columns);
        fetch(to_w, w, a.columns, row0, a.rows, step * kDepth, a.columns);
        copy_async_commit();
    };
    float sum[kTile / 8][4] = {};
    load(0);
    for (int step = 0; step < steps; ++step) {
        if (step + 1 < steps) {
            load(step + 1);
            copy_async_wait<1>();
        } else {
            copy_async_wait<0>();
        }
        __syncthreads();
        const uint32_t of_x = shared_address(tiles[step % 2][0]);
        const uint32_t of_w = shared_address(tiles[step % 2][1]);
#pragma unroll
        for (int k = 0; k < kDepth / 16; ++k) {
            uint32_t left[4];
            load_matrix(left, chunk_at(of_x, warp * 16 + lane % 16, 2 * k + lane / 16));
#pragma unroll
            for (int n = 0; n < kTile / 16; ++n) {
                uint32_t right[4];
                load_matrix(
                    right, chunk_at(of_w, n * 16 + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
                mma_sync(sum[2 * n], left, right[0], right[1], T());
                mma_sync(sum[2 * n + 1], left, right[2], right[3], T());
            }
        }
        __syncthreads();
    }
    T *y = static_cast<T *>(a.y) + head * a.y_head;
#pragma unroll
    for (int n = 0; n < kTile / 8; ++n) {
        const int row = row0 + n * 8 + lane % 4 * 2;
        if (row >= a.rows) break;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int token = token0 + warp * 16 + lane / 4 + i * 8;
            if (token >= a.tokens) continue;
            *reinterpret_cast<uint32_t *>(y + token * a.y_stride + row) =
                pack(sum[n][2 * i], sum[n][2 * i + 1], T());
        }
    }
}

__global__ void head_products_f32(const __grid_constant__ HeadProductArguments a) {
    const int row = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x), head = blockIdx.z;
    if (row >= a.rows) return;
    const int64_t token = blockIdx.x;
    const float *x = static_cast<const float *>(a.x) + token * a.x_stride + head * a.x_head;
    const float *w = static_cast<const float *>(a.w) + (int64_t{head} * a.rows + row) * a.columns;
    float sum = 0;
    for (int k = 0; k < a.columns; ++k) sum += x[k] * w[k];
    static_cast<float *>(a.y)[token * a.y_stride + head * a.y_head + row] = sum;
}

// ---- Keys and queries ----

constexpr int kThreads = 256;

__device__ float block_sum(float x) {
    __shared__ float parts[kThreads / 32];
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
    __syncthreads(); // the parts before these have been read
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < kThreads / 32; ++i) sum += parts[i];
    return sum;
}

template <typename T> struct Row {
    const T *x;
    const float *bias; // or null
    __device__ float operator[](int i) const {
        return static_cast<float>(x[i]) + (bias != nullptr ? bias[i] : 0.0f);
    }
};

// Calls put(i, value) for each element of the row's norm.
template <typename T, typename Put>
__device__ void rms_norm(const Row<T> &row, int length, const DeviceNorm &norm, const Put &put) {
    float sum = 0;
    for (int i = threadIdx.x; i < length; i += kThreads) sum += row[i] * row[i];
    const float scale = rsqrtf(block_sum(sum) / static_cast<float>(length) + norm.epsilon);
    for (int i = threadIdx.x; i < length; i += kThreads) {
        const float weight = norm.weight != nullptr ? norm.weight[i] : 1.0f;
        put(i, row[i] * scale * weight);
    }
}

// Element i of a part of `dims` elements, turned. angles: [dims / 2], or null.
template <typename Elements>
__device__ float turned(const Elements &x, int i, int dims, const float2 *angles, bool pairs) {
    if (angles == nullptr) return x[i];
    const int half = dims / 2;
    const bool first = pairs ? i % 2 == 0 : i < half;
    const float2 angle = angles[pairs ? i / 2 : first ? i : i - half];
    const float other = x[pairs ? i ^ 1 : first ? i + half : i - half];
    return x[i] * angle.x + (first ? -other : other) * angle.y;
}

template <typename T> __global__ void __launch_bounds__(kThreads)
    latent_keys(const __grid_constant__ LatentKeyArguments a) {
    const int64_t token = blockIdx.x;
    const T *x = static_cast<const T *>(a.x) + token * a.stride;
    if (a.q_rank > 0) {
        T *normed = static_cast<T *>(a.normed) + token * a.q_rank;
        rms_norm(Row<T>{x, a.bias}, a.q_rank, a.q_norm,
                 [&](int i, float value) { normed[i] = static_cast<T>(value); });
    }
    const int32_t slot = a.slots[token];
    if (slot < 0) return;
    const int key = slot % kPageKeys;
    T *page = static_cast<T *>(a.kv) + int64_t{slot / kPageKeys} * kPageKeys * a.key_dim;
    const auto put = [&](int i, float value) {
        if constexpr (sizeof(T) == 4) {
            page[key * a.key_dim + i] = value;
        } else {
            page[place_in_block(key, i, 2)] = static_cast<T>(value);
        }
    };
    rms_norm(Row<T>{x + a.at, a.bias != nullptr ? a.bias + a.at : nullptr}, a.rank, a.norm, put);
    const int at = a.at + a.rank;
    const Row<T> part{x + at, a.bias != nullptr ? a.bias + at : nullptr};
    const float2 *angles = a.table != nullptr ? a.table + token * (a.turned / 2) : nullptr;
    for (int i = threadIdx.x; i < a.turned; i += kThreads) {
        put(a.key_dim - 64 + i, turned(part, i, a.turned, angles, a.pairs));
    }
}

template <typename T> __global__ void __launch_bounds__(kThreads)
    latent_queries(const __grid_constant__ LatentQueryArguments a) {
    const int64_t token = blockIdx.x;
    const float2 *angles = a.table != nullptr ? a.table + token * (a.turned / 2) : nullptr;
    for (int i = threadIdx.x; i < a.heads * a.turned; i += kThreads) {
        const int head = i / a.turned, e = i % a.turned;
        const Row<T> part{static_cast<const T *>(a.q) + token * a.q_stride +
                              (head + 1) * a.query_dim - a.turned,
                          nullptr};
        static_cast<T *>(a.out)[(token * a.heads + head + 1) * a.key_dim - 64 + e] =
            static_cast<T>(turned(part, e, a.turned, angles, a.pairs));
    }
}

} // namespace

cudaError_t launch_head_products(const HeadProductArguments &a, cudaStream_t stream) {
    if (a.tokens == 0) return cudaSuccess;
    const auto blocks = [](int32_t count, int32_t of) {
        return static_cast<unsigned>((count + of - 1) / of);
    };
    const auto heads = static_cast<unsigned>(a.heads);
    if (a.element == DType::f32) {
        const dim3 grid(static_cast<unsigned>(a.tokens), blocks(a.rows, 128), heads);
        head_products_f32<<<grid, 128, 0, stream>>>(a);
        return cudaGetLastError();
    }
    if (a.columns % 8 != 0 || a.rows % 2 != 0 || a.x_stride % 8 != 0 || a.x_head % 8 != 0) {
        return cudaErrorInvalidValue;
    }
    const dim3 grid(blocks(a.tokens, kTile), blocks(a.rows, kTile), heads);
    if (a.element == DType::bf16) {
        head_products<__nv_bfloat16><<<grid, kProductThreads, 0, stream>>>(a);
    } else {
        head_products<__half><<<grid, kProductThreads, 0, stream>>>(a);
    }
    return cudaGetLastError();
}

cudaError_t launch_latent_keys(const LatentKeyArguments &a, cudaStream_t stream) {
    if (a.tokens == 0) return cudaSuccess;
    return with_type(a.element, [&](auto t) {
        latent_keys<decltype(t)><<<static_cast<unsigned>(a.tokens), kThreads, 0, stream>>>(a);
        return cudaGetLastError();
    });
}

cudaError_t launch_latent_queries(const LatentQueryArguments &a, cudaStream_t stream) {
    if (a.tokens == 0) return cudaSuccess;
    return with_type(a.element, [&](auto t) {
        latent_queries<decltype(t)><<<static_cast<unsigned>(a.tokens), kThreads, 0, stream>>>(a);
        return cudaGetLastError();
    });
}

} // namespace batchllm::cuda
