// A row of the residual stream held by a block's threads: its norms and what is added to it.
#pragma once

#include <type_traits>

#include "elementwise/element.cuh"
#include "elementwise/elementwise.h"
#include "elementwise/norm.h"

namespace batchllm::cuda {

inline constexpr int kNormVectors = 4; // a thread's registers hold at most so many

// The sum over the block, in every thread.
__device__ __forceinline__ float block_sum(float x, float *sums) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
    __syncthreads(); // the sums before these have been read
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
    for (unsigned w = 0; w < blockDim.x / 32; ++w) x += sums[w];
    return x;
}

// Where the thread's vector v of a row begins.
__device__ __forceinline__ int vector_begin(int v) {
    return (v * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * kVector;
}

// The thread's part of a row in memory: on its way from the start where registers hold it beside another, else
// loaded when it is asked for. Once: nobody reads the row after this. Not by L1, where all rows' weights stay.
template <typename R, int Vectors, bool Once> struct StoredRow {
    static constexpr bool held = Vectors * sizeof(R) <= 4;

    __device__ __forceinline__ StoredRow(const R *row, int length) : at(row) {
#pragma unroll
        for (int v = 0; held && v < Vectors; ++v) {
            if (vector_begin(v) < length) packed[v] = load(v);
        }
    }
    // Vector v, which begins within the row.
    __device__ __forceinline__ void get(int v, float (&x)[8]) const {
        if constexpr (held) {
            widen(packed[v], x);
        } else {
            load8(at + vector_begin(v), x);
        }
    }
    __device__ __forceinline__ Packed8<R> load(int v) const {
        return Once ? load_once(at + vector_begin(v)) : load_past_l1(at + vector_begin(v));
    }

    const R *at;
    Packed8<R> packed[held ? Vectors : 1];
};

// x: the thread's part of the row, zero beyond its end. All of the block call this.
template <int Vectors> __device__ __forceinline__ void
normalise(float (&x)[Vectors][8], const DeviceNorm &norm, int hidden, float *sums) {
    if (norm.kind == NormKind::none) return;
    float mean = 0, sum = 0;
    if (norm.kind == NormKind::layer) {
#pragma unroll
        for (int v = 0; v < Vectors; ++v) {
            if (vector_begin(v) >= hidden) break;
#pragma unroll
            for (int k = 0; k < 8; ++k) sum += x[v][k];
        }
        mean = block_sum(sum, sums) / static_cast<float>(hidden);
        sum = 0;
    }
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
        if (vector_begin(v) >= hidden) break;
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            x[v][k] -= mean;
            sum += x[v][k] * x[v][k];
        }
    }
    sum = block_sum(sum, sums);
    const float scale = rsqrtf(sum / static_cast<float>(hidden) + norm.epsilon);
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
        const int i = vector_begin(v);
        if (i >= hidden) break;
        float by[8];
#pragma unroll
        for (int k = 0; k < 8; ++k) x[v][k] *= scale;
        if (norm.weight != nullptr) {
            load8(norm.weight + i, by);
#pragma unroll
            for (int k = 0; k < 8; ++k) x[v][k] *= by[k];
        }
        if (norm.bias != nullptr) {
            load8(norm.bias + i, by);
#pragma unroll
            for (int k = 0; k < 8; ++k) x[v][k] += by[k];
        }
    }
}

// residual, which was `was`, = keep * (was + scale * after(x)), where what is fresh was zero; x becomes what is stored there, which the next norm reads: the
// same as in two passes. All of the block call this.
template <typename R, int Vectors>
__device__ __forceinline__ void add_to_residual(const AddNormArguments &a,
                                                const StoredRow<R, Vectors, false> &was,
                                                float (&x)[Vectors][8], R *residual, float *sums) {
    const float keep = a.keep != nullptr ? *a.keep : 1.0f;
    normalise(x, a.after, a.hidden, sums);
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
        const int i = vector_begin(v);
        if (i >= a.hidden) break;
        float sum[8] = {};
        if (!a.fresh) was.get(v, sum);
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            x[v][k] = to_float(from_float<R>(keep * (sum[k] + a.scale * x[v][k])));
        }
        store8(residual + i, x[v]);
    }
}

// Calls launch with a row's vectors a thread, as a constant, and the threads of its block.
template <typename Launch> cudaError_t with_shape(int32_t hidden, const Launch &launch) {
    const int vectors = (hidden + kVector - 1) / kVector;
    const auto threads = [&](int each) { return (vectors + each * 32 - 1) / (each * 32) * 32; };
    if (threads(1) <= 256) return launch(std::integral_constant<int, 1>(), threads(1));
    if (threads(2) <= 512) return launch(std::integral_constant<int, 2>(), threads(2));
    if (hidden > kMostNormed) return cudaErrorInvalidValue;
    return launch(std::integral_constant<int, kNormVectors>(), threads(kNormVectors));
}

} // namespace batchllm::cuda
