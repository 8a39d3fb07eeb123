// What lies around attention over latents, bound by memory; and the products of heads in f32, plain.
#include <cuda_fp8.h>

#include "elementwise/element.cuh"
#include "latent/latent.h"

namespace batchllm::cuda {
namespace {

// ---- y[t, h] = x[t, h] W[h]^T ----

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
        float factor = 1;
        if (a.long_scale != 0) {
            const int periods = (a.positions[token] + a.long_shift) / a.long_period;
            factor += a.long_scale * logf(static_cast<float>(1 + periods));
        }
        rms_norm(Row<T>{x, a.bias}, a.q_rank, a.q_norm,
                 [&](int i, float value) { normed[i] = static_cast<T>(value * factor); });
    }
    const int32_t slot = a.slots[token];
    if (slot < 0) return;
    const int key = slot % kPageKeys;
    const int64_t first = int64_t{slot / kPageKeys} * kPageKeys * a.key_dim;
    T *page = static_cast<T *>(a.kv) + first;
    const float inverse = a.kv_e4m3 && a.scale != nullptr ? 1.0f / *a.scale : 1.0f;
    const auto put = [&](int i, float value) {
        if (a.kv_e4m3) {
            static_cast<__nv_fp8_e4m3 *>(a.kv)[first + place_in_block(key, i, 1)] =
                __nv_fp8_e4m3(value * inverse);
        } else if constexpr (sizeof(T) == 4) {
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

// ---- The plain form ----

// Eight elements as f32, and back.
template <typename T> struct Eight {
    float x[8];
    __device__ explicit Eight(const T *from) {
        const uint4 bits = *reinterpret_cast<const uint4 *>(from);
        const auto *of = reinterpret_cast<const T *>(&bits);
        for (int i = 0; i < 8; ++i) x[i] = static_cast<float>(of[i]);
    }
    __device__ void write(T *to) const {
        __align__(16) T of[8];
        for (int i = 0; i < 8; ++i) of[i] = static_cast<T>(x[i]);
        *reinterpret_cast<uint4 *>(to) = *reinterpret_cast<const uint4 *>(of);
    }
};

// Turns two eights: elements [at, at + 8) and [at + half, ...) of a part of 2 half.
template <typename T> __device__ void turn(Eight<T> *low, Eight<T> *high, int at, int half,
                                           const float2 *angles, bool pairs) {
    for (int i = 0; i < 8; ++i) {
        if (!pairs) {
            const float2 angle = angles[at + i];
            const float x = low->x[i], y = high->x[i];
            low->x[i] = x * angle.x - y * angle.y;
            high->x[i] = y * angle.x + x * angle.y;
        } else if (i % 2 == 0) {
            for (Eight<T> *part : {low, high}) {
                const float2 angle = angles[(at + (part == high ? half : 0) + i) / 2];
                const float x = part->x[i], y = part->x[i + 1];
                part->x[i] = x * angle.x - y * angle.y;
                part->x[i + 1] = y * angle.x + x * angle.y;
            }
        }
    }
}

template <typename T> __global__ void __launch_bounds__(kThreads)
    latent_plain_queries(const __grid_constant__ LatentPlainArguments a) {
    const int64_t token = blockIdx.x;
    const T *q = static_cast<const T *>(a.q) + token * a.q_stride;
    T *out = static_cast<T *>(a.out) + token * a.out_stride;
    const int half = a.turned / 2, plain = a.query_dim - a.turned;
    for (int i = threadIdx.x; i < a.heads * (half / 8); i += kThreads) {
        const int head = i / (half / 8), at = i % (half / 8) * 8;
        const T *from = q + head * a.query_dim + plain + at;
        Eight<T> low(from), high(from + half);
        if (a.table != nullptr) {
            turn(&low, &high, at, half, a.table + token * half, a.pairs);
        }
        T *to = out + head * latent_head_dim + plain + at;
        low.write(to);
        high.write(to + half);
    }
    if (a.out == a.q) return;
    const int rest = (latent_head_dim - a.turned) / 8; // eights of a head that are not turned
    for (int i = threadIdx.x; i < a.heads * rest; i += kThreads) {
        const int head = i / rest, eight = i % rest * 8;
        const bool padding = eight >= plain;
        const uint4 bits = padding
                               ? make_uint4(0, 0, 0, 0)
                               : *reinterpret_cast<const uint4 *>(q + head * a.query_dim + eight);
        *reinterpret_cast<uint4 *>(out + head * latent_head_dim + eight +
                                   (padding ? a.turned : 0)) = bits;
    }
}

__global__ void __launch_bounds__(kThreads)
    latent_narrow(const uint4 *x, uint4 *y, int64_t eights, int32_t each) {
    const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (i < eights) y[i] = x[i / each * (latent_head_dim / 8) + i % each];
}

} // namespace

cudaError_t launch_head_products(const HeadProductArguments &a, cudaStream_t stream) {
    if (a.tokens == 0) return cudaSuccess;
    const dim3 grid(static_cast<unsigned>(a.tokens), static_cast<unsigned>((a.rows + 127) / 128),
                    static_cast<unsigned>(a.heads));
    head_products_f32<<<grid, 128, 0, stream>>>(a);
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

cudaError_t launch_latent_plain_queries(const LatentPlainArguments &a, cudaStream_t stream) {
    if (a.tokens == 0) return cudaSuccess;
    const auto kernel = a.element == DType::bf16 ? latent_plain_queries<__nv_bfloat16>
                                                 : latent_plain_queries<__half>;
    kernel<<<static_cast<unsigned>(a.tokens), kThreads, 0, stream>>>(a);
    return cudaGetLastError();
}

cudaError_t launch_latent_narrow(const void *x, void *y, int64_t rows, int32_t columns,
                                 cudaStream_t stream) {
    const int64_t eights = rows * (columns / 8);
    if (eights == 0) return cudaSuccess;
    latent_narrow<<<static_cast<unsigned>((eights + kThreads - 1) / kThreads), kThreads, 0,
                    stream>>>(static_cast<const uint4 *>(x), static_cast<uint4 *>(y), eights,
                              columns / 8);
    return cudaGetLastError();
}

} // namespace batchllm::cuda
