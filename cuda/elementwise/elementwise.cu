// All are bound by memory: what each must move is named at its kernel. 16-byte accesses (32 for f32).
#include "elementwise/elementwise.h"

#include "elementwise/activation.cuh"
#include "elementwise/element.cuh"

#include <algorithm>

namespace batchllm::cuda {
namespace {

// ---- Convert, random: at loading only ----

template <typename From, typename To> __global__ void convert(ConvertArguments a) {
    const int64_t count = a.rows * a.columns;
    const int64_t step = int64_t{gridDim.x} * blockDim.x;
    for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
        const int64_t row = a.row_begin + i / a.columns;
        const int64_t column = i % a.columns;
        const int64_t to_row = row / a.row_group * a.row_group_out + row % a.row_group;
        int64_t to_column = column / a.column_group * a.column_group_out + column % a.column_group;
        if (a.swizzled) to_column ^= to_row % 8 * 8;
        float x = to_float(static_cast<const From *>(a.from)[i]) * a.scale;
        if (a.offset != 0) x += a.offset;
        static_cast<To *>(a.to)[to_row * a.to_stride + to_column] = from_float<To>(x);
    }
}

// As convert, of elements that stay what they are.
__global__ void place_bytes(ConvertArguments a) {
    const int64_t count = a.rows * a.columns;
    const int64_t step = int64_t{gridDim.x} * blockDim.x;
    for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
        const int64_t row = a.row_begin + i / a.columns;
        const int64_t column = i % a.columns;
        const int64_t to_row = row / a.row_group * a.row_group_out + row % a.row_group;
        int64_t to_column = column / a.column_group * a.column_group_out + column % a.column_group;
        if (a.swizzled) to_column ^= to_row % 8 * 16;
        static_cast<uint8_t *>(a.to)[to_row * a.to_stride + to_column] =
            static_cast<const uint8_t *>(a.from)[i];
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
                                                        float scale, R *residual) {
    int32_t token = tokens[blockIdx.x];
    // A row whose logits were not finite has no token, and what follows of it does not count.
    if (token < 0) token = max(samples[-1 - token].token, 0);
    const T *from = table + int64_t{token} * hidden;
    R *to = residual + int64_t{blockIdx.x} * hidden;
    for (int i = threadIdx.x * kVector; i < hidden; i += blockDim.x * kVector) {
        float x[8];
        load8(from + i, x);
#pragma unroll
        for (int k = 0; k < 8; ++k) x[k] *= scale;
        store8(to + i, x);
    }
}

// ---- Activation: reads rows x width, twice with a gate, writes it once ----

template <typename T, Activation Kind, bool Gated>
__global__ void activate(const T *x, const float *bias, const float *numbers,
                         const uint8_t *left_out, T *out, int32_t rows, int32_t width) {
    const int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) * kVector;
    if (column >= width) return;
    const float2 curve = curve_of<Kind>(numbers);
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
        if (left_out != nullptr && left_out[row] != 0) continue;
        constexpr int parts = Gated ? 2 : 1;
        const T *from = x + row * parts * width + column;
        const Packed8<T> first = load_once(from);
        Packed8<T> second;
        if constexpr (Gated) second = load_once(from + width);
        float gate[8], up[8];
        widen(first, gate);
        if constexpr (Gated) widen(second, up);
        if (bias != nullptr) {
            for (int k = 0; k < 8; ++k) {
                gate[k] += bias[column + k];
                if constexpr (Gated) up[k] += bias[width + column + k];
            }
        }
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            if constexpr (Gated) {
                up[k] *= activated<Kind>(gate[k], curve);
            } else {
                up[k] = activated<Kind>(gate[k], curve);
            }
        }
        store8(out + row * width + column, up);
    }
}

constexpr int kSquareThreads = 128;

template <typename T> __global__ void __launch_bounds__(kSquareThreads)
    row_squares(const __grid_constant__ RowSquaresArguments a) {
    const T *row = static_cast<const T *>(a.x) + int64_t{blockIdx.x} * a.stride;
    float sum = 0;
    for (int i = static_cast<int>(threadIdx.x) * kVector; i < a.columns;
         i += kSquareThreads * kVector) {
        float x[8];
        load8(row + i, x);
#pragma unroll
        for (int k = 0; k < 8; ++k) sum += x[k] * x[k];
    }
    __shared__ float sums[kSquareThreads / 32];
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    sum = 0;
    for (const float of_warp : sums) sum += of_warp;
    a.sums[int64_t{blockIdx.x} * a.sums_stride] = sum;
}

template <typename T>
__global__ void add_bias(T *x, const float *bias, int32_t rows, int32_t width) {
    const int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) * kVector;
    if (column >= width) return;
    float b[8];
    load8(bias + column, b);
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
        float value[8];
        T *at = x + row * width + column;
        load8(at, value);
#pragma unroll
        for (int k = 0; k < 8; ++k) value[k] += b[k];
        store8(at, value);
    }
}

// ---- Output gate of attention: reads both, writes one ----

template <typename T> __global__ void gate(GateArguments a) {
    const int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) * kVector;
    if (column >= a.width) return;
    for (int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
        T *at = static_cast<T *>(a.x) + row * a.width + column;
        const Packed8<T> was = load_past_l1(at);
        const Packed8<T> gates =
            load_once(static_cast<const T *>(a.gates) + row * a.gate_stride + column);
        float x[8], g[8];
        widen(was, x);
        widen(gates, g);
        if (a.bias != nullptr) {
            float b[8];
            load8(a.bias + column, b);
#pragma unroll
            for (int k = 0; k < 8; ++k) g[k] += b[k];
        }
#pragma unroll
        for (int k = 0; k < 8; ++k) x[k] = divided(x[k], 1.0f + expf(-g[k]));
        store8(at, x);
    }
}

// ---- Logits: reads and writes them ----

__global__ void finish_logits(float *logits, const float *bias, float softcap, int64_t vectors,
                              int64_t row_vectors) {
    const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (i >= vectors) return;
    float x[8];
    load8(logits + i * kVector, x);
    if (bias != nullptr) {
        float b[8];
        load8(bias + i % row_vectors * kVector, b);
#pragma unroll
        for (int k = 0; k < 8; ++k) x[k] += b[k];
    }
    if (softcap != 0) {
#pragma unroll
        for (int k = 0; k < 8; ++k) x[k] = softcap * tanhf(x[k] / softcap);
    }
    store8(logits + i * kVector, x);
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

// A thread sums kVector columns of a span's rows.
template <typename T> __global__ void sum_rows(const T *__restrict__ x,
                                               const SumSpan *__restrict__ spans,
                                               float *__restrict__ sums, int32_t width) {
    const SumSpan span = spans[blockIdx.x];
    const int column = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * kVector;
    if (column >= width) return;
    float sum[kVector] = {};
    for (int32_t r = 0; r < span.count; ++r) {
        float row[kVector];
        load8(x + static_cast<int64_t>(span.begin + r) * width + column, row);
#pragma unroll
        for (int i = 0; i < kVector; ++i) sum[i] += row[i];
    }
    store8(sums + static_cast<int64_t>(blockIdx.x) * width + column, sum);
}

} // namespace

cudaError_t launch_convert(const ConvertArguments &a, cudaStream_t stream) {
    if (a.rows * a.columns == 0) return cudaSuccess;
    const unsigned blocks = std::min(grid_for(a.rows * a.columns, 256), 4096u);
    if (a.from_type == DType::e4m3 && a.to_type == DType::e4m3) {
        if (a.scale != 1 || a.offset != 0) return cudaErrorInvalidValue;
        place_bytes<<<blocks, 256, 0, stream>>>(a);
        return cudaGetLastError();
    }
    return with_type(a.from_type, [&](auto from) {
        return with_type(a.to_type, [&](auto to) {
            convert<decltype(from), decltype(to)><<<blocks, 256, 0, stream>>>(a);
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
                         int32_t hidden, float scale, void *residual, cudaStream_t stream) {
    if (count == 0) return cudaSuccess;
    return with_type(element, [&](auto t) {
        return with_type(residual_type, [&](auto r) {
            embed<<<static_cast<unsigned>(count), 256, 0, stream>>>(
                static_cast<const decltype(t) *>(table), tokens, samples, hidden, scale,
                static_cast<decltype(r) *>(residual));
            return cudaGetLastError();
        });
    });
}

template <Activation Kind>
cudaError_t launch_activation(const ActivationArguments &a, cudaStream_t stream) {
    return with_type(a.element, [&](auto t) {
        using T = decltype(t);
        const auto kernel = a.gated ? activate<T, Kind, true> : activate<T, Kind, false>;
        const RowGrid grid(a.rows, a.width / kVector);
        kernel<<<grid.blocks, grid.threads, 0, stream>>>(static_cast<const T *>(a.x), a.bias,
                                                         a.curve, a.left_out,
                                                         static_cast<T *>(a.out), a.rows, a.width);
        return cudaGetLastError();
    });
}

cudaError_t launch_activation(const ActivationArguments &a, cudaStream_t stream) {
    if (a.rows == 0) return cudaSuccess;
    switch (a.kind) {
    case Activation::silu:
        return launch_activation<Activation::silu>(a, stream);
    case Activation::gelu:
        return launch_activation<Activation::gelu>(a, stream);
    case Activation::gelu_tanh:
        return launch_activation<Activation::gelu_tanh>(a, stream);
    case Activation::relu_squared:
        return launch_activation<Activation::relu_squared>(a, stream);
    case Activation::xielu:
        return launch_activation<Activation::xielu>(a, stream);
    case Activation::clamped_swiglu: // supported.h refuses it
        break;
    }
    return cudaErrorInvalidValue;
}

cudaError_t launch_finish_logits(float *logits, int64_t rows, int64_t stride, const float *bias,
                                 float softcap, cudaStream_t stream) {
    if (rows == 0 || (bias == nullptr && softcap == 0)) return cudaSuccess;
    const int64_t row_vectors = stride / kVector, vectors = rows * row_vectors;
    finish_logits<<<static_cast<unsigned>((vectors + 255) / 256), 256, 0, stream>>>(
        logits, bias, softcap, vectors, row_vectors);
    return cudaGetLastError();
}

cudaError_t launch_add_bias(DType type, void *x, const float *bias, int32_t rows, int32_t width,
                            cudaStream_t stream) {
    if (rows == 0 || bias == nullptr) return cudaSuccess;
    return with_type(type, [&](auto t) {
        const RowGrid grid(rows, width / kVector);
        add_bias<<<grid.blocks, grid.threads, 0, stream>>>(static_cast<decltype(t) *>(x), bias,
                                                           rows, width);
        return cudaGetLastError();
    });
}

cudaError_t launch_row_squares(const RowSquaresArguments &a, cudaStream_t stream) {
    if (a.rows == 0) return cudaSuccess;
    return with_type(a.element, [&](auto t) {
        row_squares<decltype(t)><<<static_cast<unsigned>(a.rows), kSquareThreads, 0, stream>>>(a);
        return cudaGetLastError();
    });
}

cudaError_t launch_gate(const GateArguments &a, cudaStream_t stream) {
    if (a.rows == 0) return cudaSuccess;
    return with_type(a.element, [&](auto t) {
        const RowGrid grid(a.rows, a.width / kVector);
        gate<decltype(t)><<<grid.blocks, grid.threads, 0, stream>>>(a);
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

cudaError_t launch_sum_rows(DType type, const void *x, const SumSpan *spans, float *sums,
                            int32_t count, int32_t width, cudaStream_t stream) {
    if (count == 0) return cudaSuccess;
    constexpr int threads = 64;
    const int vectors = width / kVector;
    const dim3 grid(static_cast<unsigned>(count),
                    static_cast<unsigned>((vectors + threads - 1) / threads));
    return with_type(type, [&](auto t) {
        sum_rows<<<grid, threads, 0, stream>>>(static_cast<const decltype(t) *>(x), spans, sums,
                                               width);
        return cudaGetLastError();
    });
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
