// Bound by memory: reads every turn's row once, and a row of the residual stream, which it writes with its norm.
#include "experts/combine.h"

#include "elementwise/norm_row.cuh"

namespace batchllm::cuda {
namespace {

template <typename R> __device__ __forceinline__ float rounded(float x) {
    return to_float(from_float<R>(x));
}

// Normed: with norms.
template <typename R, typename T, int Vectors, bool Normed> __global__ void
__launch_bounds__(Vectors < kNormVectors ? 512 : 1024, Vectors < kNormVectors ? 2 : 1)
    combine(const __grid_constant__ CombineArguments a) {
    __shared__ float sums[32];
    const int64_t row = blockIdx.x, begin = row * a.add.hidden;
    const int32_t *turns = a.turn_of + row * a.chosen;
    const float *weights = a.weights + row * a.chosen;
    const float gate =
        a.shared_gate != nullptr ? 1.0f / (1.0f + expf(-a.shared_gate[row * a.gate_stride])) : 1.0f;
    R *residual = static_cast<R *>(a.add.residual) + begin;
    // What is fresh may be another rank's memory, which is not read.
    const StoredRow<R, Vectors, false> was(residual, a.add.fresh ? 0 : a.add.hidden);
    float x[Vectors][8] = {}, shared[Normed ? Vectors : 1][8];
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
        const int i = vector_begin(v);
        if (i >= a.add.hidden) break;
        if constexpr (Normed) {
            load8(static_cast<const R *>(a.add.delta) + begin + i, shared[v]);
        } else if (a.add.delta != nullptr) {
            load8(static_cast<const R *>(a.add.delta) + begin + i, x[v]);
#pragma unroll
            for (int k = 0; k < 8; ++k) x[v][k] *= gate;
        }
#pragma unroll 4
        for (int c = 0; c < a.chosen; ++c) {
            float made[8];
            load8(static_cast<const T *>(a.made) + int64_t{turns[c]} * a.add.hidden + i, made);
            const float weight = weights[c];
#pragma unroll
            for (int k = 0; k < 8; ++k) x[v][k] += weight * made[k];
        }
    }
    if constexpr (Normed) {
        normalise(x, a.norms.made, a.add.hidden, sums);
        normalise(shared, a.norms.shared, a.add.hidden, sums);
#pragma unroll
        for (int v = 0; v < Vectors; ++v) {
            if (vector_begin(v) >= a.add.hidden) break;
#pragma unroll
            for (int k = 0; k < 8; ++k) x[v][k] = rounded<R>(rounded<R>(shared[v][k]) + x[v][k]);
        }
    }
    add_to_residual(a.add, was, x, residual, sums);
    if (a.add.out == nullptr) return;
    normalise(x, a.add.next, a.add.hidden, sums);
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
        const int i = vector_begin(v);
        if (i >= a.add.hidden) break;
        store8(static_cast<T *>(a.add.out) + begin + i, x[v]);
    }
}

} // namespace

cudaError_t launch_combine(const CombineArguments &a, cudaStream_t stream) {
    if (a.add.count == 0) return cudaSuccess;
    return with_shape(a.add.hidden, [&](auto vectors, int threads) {
        return with_type(a.add.stream_type, [&](auto r) {
            return with_type(a.add.element, [&](auto t) {
                constexpr int v = decltype(vectors)::value;
                const auto blocks = static_cast<unsigned>(a.add.count);
                if (a.norms.made) {
                    combine<decltype(r), decltype(t), v, true><<<blocks, threads, 0, stream>>>(a);
                } else {
                    combine<decltype(r), decltype(t), v, false><<<blocks, threads, 0, stream>>>(a);
                }
                return cudaGetLastError();
            });
        });
    });
}

} // namespace batchllm::cuda
