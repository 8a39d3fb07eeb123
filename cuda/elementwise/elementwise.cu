// All are bound by memory: what each must move is named at its kernel. 16-byte accesses (32 for f32).
#include "elementwise/elementwise.h"

#include "attention/attention.h"
#include "elementwise/element.cuh"

#include <algorithm>

namespace batchllm::cuda {
namespace {

unsigned grid_for(int64_t work, int threads) {
    return static_cast<unsigned>(std::clamp<int64_t>((work + threads - 1) / threads, 1, 1 << 20));
}

// ---- Convert, random: at loading only ----

template <typename From, typename To> __global__ void convert(ConvertArguments a) {
    const int64_t count = a.rows * a.columns;
    const int64_t step = int64_t{gridDim.x} * blockDim.x;
    for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
        const int64_t row = a.row_begin + i / a.columns;
        const int64_t column = i % a.columns;
        const int64_t to_row = row / a.row_group * a.row_group_out + row % a.row_group;
        const int64_t to_column =
            column / a.column_group * a.column_group_out + column % a.column_group;
        static_cast<To *>(a.to)[to_row * a.to_stride + to_column] =
            from_float<To>(to_float(static_cast<const From *>(a.from)[i]));
    }
}

__device__ uint64_t mix(uint64_t x) { // splitmix64
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

template <typename T>
__global__ void random_normal(T *to, int64_t count, float mean, float deviation, uint64_t seed) {
    const int64_t step = int64_t{gridDim.x} * blockDim.x;
    for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
        // Sum of four uniform 16-bit numbers: deviation sqrt(4 / 12) of a unit.
        const uint64_t x = mix(seed * 0x632be59bd9b4e019u + static_cast<uint64_t>(i));
        const float sum = static_cast<float>((x & 0xffff) + ((x >> 16) & 0xffff) +
                                             ((x >> 32) & 0xffff) + (x >> 48)) /
                              65536.0f -
                          2.0f;
        to[i] = from_float<T>(mean + sum * 1.7320508f * deviation);
    }
}

// ---- Embedding: reads and writes tokens x hidden ----

template <typename T, typename R> __global__ void embed(const T *table, const int32_t *tokens,
                                                        const SampleResult *samples, int32_t hidden,
                                                        R *residual) {
    int32_t token = tokens[blockIdx.x];
    // A row whose logits were not finite has no token, and what follows of it does not count.
    if (token < 0) token = max(samples[-1 - token].token, 0);
    const T *from = table + int64_t{token} * hidden;
    R *to = residual + int64_t{blockIdx.x} * hidden;
    for (int i = threadIdx.x * kVector; i < hidden; i += blockDim.x * kVector) {
        float x[8];
        load8(from + i, x);
        store8(to + i, x);
    }
}

// ---- RMSNorm: reads the row once, keeps it in registers, writes it ----

constexpr int kNormVectors = 4; // a thread's registers hold at most so many

// The weights are on their way while the row's sum is made, where registers hold both.
template <typename R, typename T, int Vectors>
__global__ void __launch_bounds__(Vectors < kNormVectors ? 512 : 1024) rms_norm(NormArguments a) {
    constexpr bool early = Vectors < kNormVectors;
    const int64_t row = a.rows != nullptr ? a.rows[blockIdx.x] : int64_t{blockIdx.x};
    const R *x = static_cast<const R *>(a.x) + row * a.hidden;
    float kept[Vectors][8], weight[Vectors][8];
    float sum = 0;
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
        const int i = (v * blockDim.x + threadIdx.x) * kVector;
        if (i >= a.hidden) break;
        load8(x + i, kept[v]);
        if constexpr (early) load8(a.weight + i, weight[v]);
    }
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
        if ((v * blockDim.x + threadIdx.x) * kVector >= a.hidden) break;
#pragma unroll
        for (int k = 0; k < 8; ++k) sum += kept[v][k] * kept[v][k];
    }
    __shared__ float sums[32];
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (unsigned w = 0; w < blockDim.x / 32; ++w) sum += sums[w];
    const float scale = rsqrtf(sum / static_cast<float>(a.hidden) + a.epsilon);
    T *out = static_cast<T *>(a.out) + int64_t{blockIdx.x} * a.hidden;
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
        const int i = (v * blockDim.x + threadIdx.x) * kVector;
        if (i >= a.hidden) break;
        if constexpr (!early) load8(a.weight + i, weight[v]);
#pragma unroll
        for (int k = 0; k < 8; ++k) weight[v][k] *= kept[v][k] * scale;
        store8(out + i, weight[v]);
    }
}

// ---- Rotary embedding ----

__global__ void rope_table(const int32_t *positions, const float *frequencies, int32_t tokens,
                           int32_t half, float2 *table) {
    const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (i >= int64_t{tokens} * half) return;
    const float angle = static_cast<float>(positions[i / half]) * frequencies[i % half];
    float2 out;
    sincosf(angle, &out.y, &out.x);
    table[i] = out;
}

// Where element e (a multiple of 8) of a key's row stands in its block.
template <typename T>
__device__ __forceinline__ int place_in_block(int e, int key, int padded_dim) {
    if constexpr (sizeof(T) == 4) {
        return key * padded_dim + e;
    } else {
        return e / 64 * (kPageKeys * 64) + key * 64 + (((e % 64) / 8) ^ (key % 8)) * 8;
    }
}

// A block is a token; `lanes` threads (a power of two) are a head, each with eight elements of its
// first half and the eight that they are rotated with.
template <typename T> __global__ void rope(RopeArguments a, int lanes) {
    const int token = blockIdx.x;
    const int half = a.head_dim / 2;
    const int heads = a.heads + 2 * a.kv_heads;
    const int tasks = (heads * lanes + 31) / 32 * 32;
    T *row = static_cast<T *>(a.qkv) + int64_t{token} * heads * a.padded_dim;
    const int slot = a.slots[token];
    if (slot < 0) return;
    const int key = slot % kPageKeys;
    const int64_t block = int64_t{kPageKeys} * a.padded_dim;
    for (int task = threadIdx.x; task < tasks; task += blockDim.x) {
        const int head = task / lanes;
        const int e = task % lanes * kVector;
        const bool active = head < heads && e < half;
        float x[8] = {}, y[8] = {};
        T *from = row + head * a.padded_dim + e;
        if (active) {
            load8(from, x);
            load8(from + half, y);
            if (a.bias != nullptr) {
                float b[8];
                load8(a.bias + head * a.padded_dim + e, b);
#pragma unroll
                for (int k = 0; k < 8; ++k) x[k] += b[k];
                load8(a.bias + head * a.padded_dim + e + half, b);
#pragma unroll
                for (int k = 0; k < 8; ++k) y[k] += b[k];
            }
        }
        const bool value = head >= a.heads + a.kv_heads;
        if (a.q_norm != nullptr) { // with k_norm
            float sum = 0;
#pragma unroll
            for (int k = 0; k < 8; ++k) sum += x[k] * x[k] + y[k] * y[k];
            for (int offset = lanes / 2; offset > 0; offset /= 2) {
                sum += __shfl_xor_sync(~0u, sum, offset);
            }
            if (active && !value) {
                const float scale = rsqrtf(sum / static_cast<float>(a.head_dim) + a.epsilon);
                const float *weight = head < a.heads ? a.q_norm : a.k_norm;
#pragma unroll
                for (int k = 0; k < 8; ++k) {
                    x[k] *= scale * weight[e + k];
                    y[k] *= scale * weight[e + half + k];
                }
            }
        }
        if (!active) continue;
        if (!value) {
            const float2 *angles = a.table + int64_t{token} * half + e;
#pragma unroll
            for (int k = 0; k < 8; ++k) {
                const float2 angle = angles[k];
                const float rotated = x[k] * angle.x - y[k] * angle.y;
                y[k] = y[k] * angle.x + x[k] * angle.y;
                x[k] = rotated;
            }
        }
        if (head < a.heads) {
            store8(from, x);
            store8(from + half, y);
            continue;
        }
        const int kv_head = (head - a.heads) % a.kv_heads;
        T *to = static_cast<T *>(a.kv) +
                ((int64_t{slot / kPageKeys} * a.kv_heads + kv_head) * 2 + (value ? 1 : 0)) * block;
        store8(to + place_in_block<T>(e, key, a.padded_dim), x);
        store8(to + place_in_block<T>(e + half, key, a.padded_dim), y);
    }
}

// ---- SwiGLU: reads 2, writes 1 x rows x width ----

template <typename T>
__global__ void swiglu(const T *x, const float *bias, T *out, int32_t rows, int32_t width) {
    const int vectors = width / kVector;
    const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (i >= int64_t{rows} * vectors) return;
    const int64_t row = i / vectors;
    const int column = static_cast<int>(i % vectors) * kVector;
    float gate[8], up[8];
    load8(x + row * 2 * width + column, gate);
    load8(x + row * 2 * width + width + column, up);
    if (bias != nullptr) {
        for (int k = 0; k < 8; ++k) {
            gate[k] += bias[column + k];
            up[k] += bias[width + column + k];
        }
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) up[k] *= gate[k] / (1.0f + __expf(-gate[k]));
    store8(out + row * width + column, up);
}

template <typename T>
__global__ void add_bias(T *x, const float *bias, int32_t rows, int32_t width) {
    const int vectors = width / kVector;
    const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (i >= int64_t{rows} * vectors) return;
    const int column = static_cast<int>(i % vectors) * kVector;
    float value[8], b[8];
    T *at = x + i / vectors * width + column;
    load8(at, value);
    load8(bias + column, b);
#pragma unroll
    for (int k = 0; k < 8; ++k) value[k] += b[k];
    store8(at, value);
}

__global__ void gather(const uint4 *x, const int32_t *rows, uint4 *out, int64_t row_vectors) {
    const uint4 *from = x + rows[blockIdx.x] * row_vectors;
    uint4 *to = out + int64_t{blockIdx.x} * row_vectors;
    for (int64_t i = threadIdx.x; i < row_vectors; i += blockDim.x) to[i] = from[i];
}

__global__ void copies(const __grid_constant__ CopyArguments a) {
    const auto *from = static_cast<const uint4 *>(a.from[blockIdx.y]);
    auto *to = static_cast<uint4 *>(a.to[blockIdx.y]);
    const int64_t vectors = (a.bytes[blockIdx.y] + 15) / 16;
    const int64_t step = int64_t{gridDim.x} * blockDim.x;
    for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < vectors; i += step) {
        to[i] = from[i];
    }
}

} // namespace

cudaError_t launch_convert(const ConvertArguments &a, cudaStream_t stream) {
    if (a.rows * a.columns == 0) return cudaSuccess;
    return with_type(a.from_type, [&](auto from) {
        return with_type(a.to_type, [&](auto to) {
            convert<decltype(from), decltype(to)>
                <<<std::min(grid_for(a.rows * a.columns, 256), 4096u), 256, 0, stream>>>(a);
            return cudaGetLastError();
        });
    });
}

cudaError_t launch_random(void *to, DType type, int64_t count, float mean, float deviation,
                          uint64_t seed, cudaStream_t stream) {
    if (count == 0) return cudaSuccess;
    return with_type(type, [&](auto t) {
        random_normal<<<std::min(grid_for(count, 256), 8192u), 256, 0, stream>>>(
            static_cast<decltype(t) *>(to), count, mean, deviation, seed);
        return cudaGetLastError();
    });
}

cudaError_t launch_embed(DType element, DType residual_type, const void *table,
                         const int32_t *tokens, const SampleResult *samples, int32_t count,
                         int32_t hidden, void *residual, cudaStream_t stream) {
    if (count == 0) return cudaSuccess;
    return with_type(element, [&](auto t) {
        return with_type(residual_type, [&](auto r) {
            embed<<<static_cast<unsigned>(count), 256, 0, stream>>>(
                static_cast<const decltype(t) *>(table), tokens, samples, hidden,
                static_cast<decltype(r) *>(residual));
            return cudaGetLastError();
        });
    });
}

template <int Vectors>
cudaError_t launch_norm(const NormArguments &a, int threads, cudaStream_t stream) {
    return with_type(a.stream_type, [&](auto r) {
        return with_type(a.element, [&](auto t) {
            rms_norm<decltype(r), decltype(t), Vectors>
                <<<static_cast<unsigned>(a.count), threads, 0, stream>>>(a);
            return cudaGetLastError();
        });
    });
}

cudaError_t launch_rms_norm(const NormArguments &a, cudaStream_t stream) {
    if (a.count == 0) return cudaSuccess;
    const int vectors = (a.hidden + kVector - 1) / kVector;
    const auto threads = [&](int each) { return (vectors + each * 32 - 1) / (each * 32) * 32; };
    if (threads(1) <= 256) return launch_norm<1>(a, threads(1), stream);
    if (threads(2) <= 512) return launch_norm<2>(a, threads(2), stream);
    if (threads(kNormVectors) > 1024) return cudaErrorInvalidValue;
    return launch_norm<kNormVectors>(a, threads(kNormVectors), stream);
}

cudaError_t launch_rope_table(const int32_t *positions, const float *inverse_frequencies,
                              int32_t tokens, int32_t half, float2 *table, cudaStream_t stream) {
    if (tokens == 0) return cudaSuccess;
    rope_table<<<grid_for(int64_t{tokens} * half, 256), 256, 0, stream>>>(
        positions, inverse_frequencies, tokens, half, table);
    return cudaGetLastError();
}

cudaError_t launch_rope(const RopeArguments &a, cudaStream_t stream) {
    if (a.tokens == 0) return cudaSuccess;
    if (a.head_dim % (2 * kVector) != 0 || a.head_dim > 256) return cudaErrorInvalidValue;
    int lanes = 1;
    while (lanes * kVector < a.head_dim / 2) lanes *= 2;
    return with_type(a.element, [&](auto t) {
        rope<decltype(t)><<<static_cast<unsigned>(a.tokens), 128, 0, stream>>>(a, lanes);
        return cudaGetLastError();
    });
}

cudaError_t launch_swiglu(DType element, const void *x, const float *bias, void *out, int32_t rows,
                          int32_t width, cudaStream_t stream) {
    if (rows == 0) return cudaSuccess;
    return with_type(element, [&](auto t) {
        using T = decltype(t);
        const int64_t vectors = int64_t{rows} * (width / kVector);
        swiglu<<<static_cast<unsigned>((vectors + 255) / 256), 256, 0, stream>>>(
            static_cast<const T *>(x), bias, static_cast<T *>(out), rows, width);
        return cudaGetLastError();
    });
}

cudaError_t launch_add_bias(DType type, void *x, const float *bias, int32_t rows, int32_t width,
                            cudaStream_t stream) {
    if (rows == 0 || bias == nullptr) return cudaSuccess;
    return with_type(type, [&](auto t) {
        const int64_t vectors = int64_t{rows} * (width / kVector);
        add_bias<<<static_cast<unsigned>((vectors + 255) / 256), 256, 0, stream>>>(
            static_cast<decltype(t) *>(x), bias, rows, width);
        return cudaGetLastError();
    });
}

cudaError_t launch_gather(const void *x, const int32_t *rows, void *out, int32_t count,
                          int64_t row_bytes, cudaStream_t stream) {
    if (count == 0) return cudaSuccess;
    gather<<<static_cast<unsigned>(count), 128, 0, stream>>>(
        static_cast<const uint4 *>(x), rows, static_cast<uint4 *>(out), row_bytes / 16);
    return cudaGetLastError();
}

cudaError_t launch_copies(const CopyArguments &a, cudaStream_t stream) {
    if (a.count == 0) return cudaSuccess;
    int64_t most = 1;
    for (int32_t i = 0; i < a.count; ++i) most = std::max(most, a.bytes[i] / 16);
    const dim3 grid(std::min(grid_for(most, 256), 64u), static_cast<unsigned>(a.count));
    copies<<<grid, 256, 0, stream>>>(a);
    return cudaGetLastError();
}

} // namespace batchllm::cuda
