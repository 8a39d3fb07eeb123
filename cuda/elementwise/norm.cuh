// The kernels of norm.h, and their launches with a type of what they pass on: 16 bits and f32 in norm.cu, e4m3
// in norm_e4m3.cu, which is compiled for devices that convert to it.
#pragma once

#include "elementwise/norm.h"

#include <type_traits>

#include "elementwise/element.cuh"
#include "elementwise/elementwise.h"
#include "elementwise/norm_row.cuh"
#include "elementwise/quantize.cuh"
#include "ranks/peers.cuh"

namespace batchllm::cuda {

cudaError_t launch_rms_norm_e4m3(const NormArguments &arguments, cudaStream_t stream);
cudaError_t launch_add_norm_e4m3(const AddNormArguments &arguments, cudaStream_t stream);

namespace {

template <typename R>
__device__ __forceinline__ void store8_whole(const Whole &to, int64_t at, const float (&x)[8]) {
    if constexpr (!std::is_same_v<R, float>) {
        store8(static_cast<R *>(to.data) + at, x); // the one type that elements then have
    } else if (to.type == DType::bf16) {
        store8(static_cast<__nv_bfloat16 *>(to.data) + at, x);
    } else {
        store8(static_cast<__half *>(to.data) + at, x);
    }
}

// ---- RMSNorm: reads the row once, keeps it in registers, writes it ----

template <typename T> constexpr bool quantized = std::is_same_v<T, __nv_fp8_e4m3>;

template <typename R, typename T, int Vectors>
__global__ void __launch_bounds__(Vectors < kNormVectors ? 512 : 1024) rms_norm(NormArguments a) {
    // The weights are on their way while the row's sum is made, where registers hold both.
    constexpr bool early = Vectors < kNormVectors && !quantized<T>;
    const int64_t row = a.rows != nullptr ? a.rows[blockIdx.x] : int64_t{blockIdx.x};
    const R *from = static_cast<const R *>(a.x) + row * a.hidden;
    Packed8<R> packed[Vectors];
    float x[Vectors][8], weight[Vectors][8];
    float sum = 0;
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
        const int i = vector_begin(v);
        if (i >= a.hidden) break;
        packed[v] = load_past_l1(from + i);
        if constexpr (early) load8(a.weight + i, weight[v]);
    }
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
        if (vector_begin(v) >= a.hidden) break;
        widen(packed[v], x[v]);
#pragma unroll
        for (int k = 0; k < 8; ++k) sum += x[v][k] * x[v][k];
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
        const int i = vector_begin(v);
        if (i >= a.hidden) break;
        if constexpr (!early) load8(a.weight + i, weight[v]);
#pragma unroll
        for (int k = 0; k < 8; ++k) x[v][k] = weight[v][k] * (x[v][k] * scale);
        if constexpr (!quantized<T>) {
            store8(out + i, x[v]);
        } else if (a.whole.data != nullptr) {
            store8_whole<R>(a.whole, int64_t{blockIdx.x} * a.hidden + i, x[v]);
        }
    }
    if constexpr (quantized<T>) {
        __shared__ unsigned maxima[32];
        store_row_e4m3(x, a.hidden, out, a.scales, blockIdx.x, maxima);
    }
}

// ---- Any norm, with an addition before it ----

// Eight elements of all ranks, added up in their order.
template <typename R>
__device__ __forceinline__ void load_sum(const PeerSum &peers, int64_t at, float (&x)[8]) {
    widen(load_past_l1(static_cast<const R *>(peers.parts[0]) + at), x);
#pragma unroll
    for (int r = 1; r < kMostPeers; ++r) {
        if (r >= peers.ranks) break;
        float more[8];
        widen(load_past_l1(static_cast<const R *>(peers.parts[r]) + at), more);
#pragma unroll
        for (int k = 0; k < 8; ++k) x[k] += more[k];
    }
}

template <typename T, int Vectors>
__device__ __forceinline__ void store_row(T *row, const float (&x)[Vectors][8], int hidden) {
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
        if (vector_begin(v) < hidden) store8(row + vector_begin(v), x[v]);
    }
}

// The block's row of what is passed on, to other ranks. In e4m3 each thread reads again what it has written.
template <typename R, typename T, int Vectors> __device__ __forceinline__ void
copy_row(const AddNormArguments &a, T *out, const float (&x)[Vectors][8]) {
    for (int c = 0; c < a.copies.count; ++c) {
        const int64_t to = a.copies.away[c];
        if constexpr (!quantized<T>) {
            store_row(away(out, to), x, a.hidden);
            continue;
        } else {
            Whole whole = a.whole;
            if (whole.data != nullptr) whole.data = away(static_cast<char *>(whole.data), to);
            const RowScales &s = a.scales;
            if (s.group_stride == 0 && threadIdx.x == 0) {
                float *scale = s.data + blockIdx.x;
                *away(scale, to) = *scale;
            }
#pragma unroll
            for (int v = 0; v < Vectors; ++v) {
                const int i = vector_begin(v);
                if (i >= a.hidden) break;
                auto *eight = reinterpret_cast<uint2 *>(out + i);
                *away(eight, to) = *eight;
                if (whole.data != nullptr) {
                    store8_whole<R>(whole, int64_t{blockIdx.x} * a.hidden + i, x[v]);
                }
                if (s.group_stride == 0 || i % kScaleGroup != 0) continue;
                float *scale =
                    s.data + i / kScaleGroup * s.group_stride + blockIdx.x * s.row_stride;
                *away(scale, to) = *scale;
            }
        }
    }
}

template <typename R, typename T, int Vectors, bool Peers> __global__ void
__launch_bounds__(Vectors < kNormVectors ? 512 : 1024, Vectors < kNormVectors ? 2 : 1)
    add_norm(const __grid_constant__ AddNormArguments a) {
    __shared__ float sums[32];
    const int64_t begin = int64_t{blockIdx.x} * a.hidden;
    const bool adds = Peers || a.delta != nullptr;
    R *residual = static_cast<R *>(a.residual) + begin;
    const StoredRow<R, Vectors, false> was(residual, a.hidden);
    const StoredRow<R, Vectors, true> delta(static_cast<const R *>(a.delta) + begin,
                                            adds && !Peers ? a.hidden : 0);
    float x[Vectors][8];
    if constexpr (Peers) {
        const int rank = static_cast<int>(threadIdx.x);
        if (rank < a.peers.ranks) {
            wait_for_rank(a.peers.counts, *a.peers.own_count, a.peers.ended, rank);
        }
        __syncthreads();
    }
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
        const int i = vector_begin(v);
        if (i >= a.hidden) break;
        if constexpr (Peers) {
            load_sum<R>(a.peers, begin + i, x[v]);
        } else if (adds) {
            delta.get(v, x[v]);
        } else {
            was.get(v, x[v]);
        }
        if (adds && a.bias != nullptr) {
            float bias[8];
            load8(a.bias + i, bias);
#pragma unroll
            for (int k = 0; k < 8; ++k) x[v][k] += bias[k];
        }
    }
    if (adds) add_to_residual(a, was, x, residual, sums);
    if constexpr (Peers) {
        for (int c = 0; a.copies.residual && c < a.copies.count; ++c) {
            store_row(away(residual, a.copies.away[c]), x, a.hidden);
        }
    }
    if (a.out == nullptr) return;
    normalise(x, a.next, a.hidden, sums);
    T *out = static_cast<T *>(a.out) + begin;
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
        const int i = vector_begin(v);
        if (i >= a.hidden) break;
        if constexpr (!quantized<T>) {
            store8(out + i, x[v]);
        } else if (a.whole.data != nullptr) {
            store8_whole<R>(a.whole, begin + i, x[v]);
        }
    }
    if constexpr (quantized<T>) {
        __shared__ unsigned maxima[32];
        store_row_e4m3(x, a.hidden, out, a.scales, blockIdx.x, maxima);
    }
    if constexpr (Peers) copy_row<R>(a, out, x);
}

template <typename T> cudaError_t launch_rms_norm_to(const NormArguments &a, cudaStream_t stream) {
    return with_shape(a.hidden, [&](auto vectors, int threads) {
        return with_type(a.stream_type, [&](auto r) {
            rms_norm<decltype(r), T, decltype(vectors)::value>
                <<<static_cast<unsigned>(a.count), threads, 0, stream>>>(a);
            return cudaGetLastError();
        });
    });
}

template <typename T>
cudaError_t launch_add_norm_to(const AddNormArguments &a, cudaStream_t stream) {
    return with_shape(a.hidden, [&](auto vectors, int threads) {
        return with_type(a.stream_type, [&](auto r) {
            using R = decltype(r);
            constexpr int v = decltype(vectors)::value;
            const auto blocks = static_cast<unsigned>(a.count);
            if (a.peers.ranks > 0) {
                add_norm<R, T, v, true><<<blocks, threads, 0, stream>>>(a);
            } else {
                add_norm<R, T, v, false><<<blocks, threads, 0, stream>>>(a);
            }
            return cudaGetLastError();
        });
    });
}

} // namespace

} // namespace batchllm::cuda
