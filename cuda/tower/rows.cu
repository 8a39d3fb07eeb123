#include "tower/rows.h"

#include <algorithm>

#include "elementwise/element.cuh"
#include "elementwise/elementwise.h"

namespace batchllm::cuda {
namespace {

constexpr int kThreads = 128;

template <typename T> __global__ void take_values(const TowerValuesArguments a) {
    const float *from = a.values + int64_t{a.patches[blockIdx.x].source} * a.width;
    T *to = static_cast<T *>(a.to) + int64_t{blockIdx.x} * a.to_width;
    for (int i = threadIdx.x; i < a.to_width; i += kThreads) {
        to[i] = from_float<T>(i < a.width ? from[i] : 0.0f);
    }
}

template <typename R> __global__ void add_positions(const TowerPositionArguments a) {
    const TowerPatch patch = a.patches[blockIdx.x];
    int at[4] = {(patch.row * a.side + patch.column) * a.hidden, 0, 0, 0};
    float weights[4] = {1, 0, 0, 0};
    if (a.interpolated) { // in f32, as the reference does it
        const int most = a.side - 1;
        const float row = __fdiv_rn(static_cast<float>(patch.row) * static_cast<float>(most),
                                    static_cast<float>(max(patch.rows - 1, 1)));
        const float column = __fdiv_rn(static_cast<float>(patch.column) * static_cast<float>(most),
                                       static_cast<float>(max(patch.columns - 1, 1)));
        const int top = static_cast<int>(row), left = static_cast<int>(column);
        const float down = row - static_cast<float>(top), right = column - static_cast<float>(left);
        for (int i = 0; i < 4; ++i) {
            weights[i] = (i / 2 == 0 ? 1 - down : down) * (i % 2 == 0 ? 1 - right : right);
            at[i] = (min(top + i / 2, most) * a.side + min(left + i % 2, most)) * a.hidden;
        }
    }
    R *x = static_cast<R *>(a.x) + int64_t{blockIdx.x} * a.hidden;
    for (int i = threadIdx.x; i < a.hidden; i += kThreads) {
        float sum = to_float(x[i]);
        if (a.bias != nullptr) sum += a.bias[i];
        if (a.table != nullptr) {
            for (int n = 0; n < (a.interpolated ? 4 : 1); ++n) {
                sum += weights[n] * a.table[at[n] + i];
            }
        }
        x[i] = from_float<R>(sum);
    }
}

__global__ void make_angles(const TowerAngleArguments a) {
    const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (i >= int64_t{a.count} * a.half) return;
    const TowerPatch patch = a.patches[i / a.half];
    const int pair = static_cast<int>(i % a.half);
    const int place = a.axes[pair] == 1 ? patch.row : patch.column;
    float2 out;
    sincosf(static_cast<float>(place) * a.frequencies[pair], &out.y, &out.x);
    a.angles[i] = make_float2(out.x * a.scale, out.y * a.scale);
}

constexpr int kQuad = 4; // elements that a thread moves at once: half a head is a multiple of these

template <typename T> __device__ __forceinline__ void load4(const T *p, float (&x)[kQuad]) {
    if constexpr (sizeof(T) == 4) {
        const float4 v = *reinterpret_cast<const float4 *>(p);
        x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
    } else {
        const uint2 v = *reinterpret_cast<const uint2 *>(p);
        const auto *pairs = reinterpret_cast<const typename Pair<T>::type *>(&v);
        const float2 low = Pair<T>::wide(pairs[0]), high = Pair<T>::wide(pairs[1]);
        x[0] = low.x, x[1] = low.y, x[2] = high.x, x[3] = high.y;
    }
}
template <typename T> __device__ __forceinline__ void store4(T *p, const float (&x)[kQuad]) {
    if constexpr (sizeof(T) == 4) {
        *reinterpret_cast<float4 *>(p) = make_float4(x[0], x[1], x[2], x[3]);
    } else {
        uint2 v;
        auto *pairs = reinterpret_cast<typename Pair<T>::type *>(&v);
        pairs[0] = Pair<T>::narrow(x[0], x[1]);
        pairs[1] = Pair<T>::narrow(x[2], x[3]);
        *reinterpret_cast<uint2 *>(p) = v;
    }
}
__device__ __forceinline__ void add4(const float *bias, float (&x)[kQuad]) {
    if (bias == nullptr) return;
    const float4 b = *reinterpret_cast<const float4 *>(bias);
    x[0] += b.x, x[1] += b.y, x[2] += b.z, x[3] += b.w;
}

// A thread takes four elements of the first half of a head and what they turn with.
template <typename T> __global__ void turn(const TowerTurnArguments a) {
    const int half = a.head_dim / 2, quads = half / kQuad, width = a.heads * a.head_dim;
    T *row = static_cast<T *>(a.qkv) + int64_t{blockIdx.x} * 3 * width;
    const float2 *angles = a.angles == nullptr ? nullptr : a.angles + int64_t{blockIdx.x} * half;
    for (int i = threadIdx.x; i < 2 * a.heads * quads; i += kThreads) {
        const int head = i / quads, e = i % quads * kQuad, at = head * a.head_dim + e;
        float x[kQuad], y[kQuad];
        load4(row + at, x);
        load4(row + at + half, y);
        if (a.bias != nullptr) {
            add4(a.bias + at, x);
            add4(a.bias + at + half, y);
        }
        if (angles != nullptr) {
#pragma unroll
            for (int k = 0; k < kQuad; ++k) {
                const float2 angle = angles[e + k];
                const float turned = x[k] * angle.x - y[k] * angle.y;
                y[k] = y[k] * angle.x + x[k] * angle.y;
                x[k] = turned;
            }
        }
        store4(row + at, x);
        store4(row + at + half, y);
    }
}

template <typename R> __global__ void means(const R *x, float *to, int32_t each, int32_t hidden) {
    for (int i = threadIdx.x; i < hidden; i += kThreads) {
        const R *from = x + int64_t{blockIdx.x} * each * hidden + i;
        float sum = 0;
        for (int p = 0; p < each; ++p) sum += to_float(from[int64_t{p} * hidden]);
        to[int64_t{blockIdx.x} * hidden + i] = sum / static_cast<float>(each);
    }
}

template <typename R> __global__ void write_outputs(const TowerOutputArguments a) {
    const float *from = a.x + int64_t{blockIdx.x} * a.to.hidden;
    R *to = static_cast<R *>(a.to.data) +
            (int64_t{a.places[blockIdx.x]} * a.to.parts + a.part) * a.to.hidden;
    for (int i = static_cast<int>(threadIdx.x) * kVector; i < a.to.hidden;
         i += kThreads * kVector) {
        float x[8];
        load8(from + i, x);
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            x[k] = a.scale * (a.bias != nullptr ? x[k] + a.bias[i + k] : x[k]);
        }
        store8(to + i, x);
    }
}

template <typename R> __global__ void
place_tokens(PictureOutputs from, int64_t part, const PictureToken *tokens, bool add, R *residual) {
    const PictureToken token = tokens[blockIdx.x];
    const R *row =
        static_cast<const R *>(from.data) + (token.place * from.parts + part) * from.hidden;
    R *to = residual + token.token * from.hidden;
    for (int i = static_cast<int>(threadIdx.x) * kVector; i < from.hidden;
         i += kThreads * kVector) {
        float x[8];
        load8(row + i, x);
        if (add) {
            float was[8];
            load8(to + i, was);
#pragma unroll
            for (int k = 0; k < 8; ++k) x[k] += was[k];
        }
        store8(to + i, x);
    }
}

} // namespace

cudaError_t launch_tower_values(const TowerValuesArguments &a, cudaStream_t stream) {
    if (a.count == 0) return cudaSuccess;
    return with_type(a.element, [&](auto t) {
        take_values<decltype(t)><<<static_cast<unsigned>(a.count), kThreads, 0, stream>>>(a);
        return cudaGetLastError();
    });
}

cudaError_t launch_tower_positions(const TowerPositionArguments &a, cudaStream_t stream) {
    if (a.count == 0 || (a.bias == nullptr && a.table == nullptr)) return cudaSuccess;
    return with_type(a.type, [&](auto r) {
        add_positions<decltype(r)><<<static_cast<unsigned>(a.count), kThreads, 0, stream>>>(a);
        return cudaGetLastError();
    });
}

cudaError_t launch_tower_angles(const TowerAngleArguments &a, cudaStream_t stream) {
    if (a.count == 0 || a.half == 0) return cudaSuccess;
    make_angles<<<grid_for(int64_t{a.count} * a.half, 256), 256, 0, stream>>>(a);
    return cudaGetLastError();
}

cudaError_t launch_tower_turn(const TowerTurnArguments &a, cudaStream_t stream) {
    if (a.count == 0 || (a.bias == nullptr && a.angles == nullptr)) return cudaSuccess;
    return with_type(a.element, [&](auto t) {
        turn<decltype(t)><<<static_cast<unsigned>(a.count), kThreads, 0, stream>>>(a);
        return cudaGetLastError();
    });
}

cudaError_t launch_tower_means(DType type, const void *x, float *to, int32_t tokens, int32_t each,
                               int32_t hidden, cudaStream_t stream) {
    if (tokens == 0) return cudaSuccess;
    return with_type(type, [&](auto r) {
        using R = decltype(r);
        means<R><<<static_cast<unsigned>(tokens), kThreads, 0, stream>>>(static_cast<const R *>(x),
                                                                         to, each, hidden);
        return cudaGetLastError();
    });
}

cudaError_t launch_tower_outputs(const TowerOutputArguments &a, cudaStream_t stream) {
    if (a.tokens == 0) return cudaSuccess;
    return with_type(a.to.type, [&](auto r) {
        write_outputs<decltype(r)><<<static_cast<unsigned>(a.tokens), kThreads, 0, stream>>>(a);
        return cudaGetLastError();
    });
}

cudaError_t launch_picture_tokens(const PictureOutputs &from, int64_t part,
                                  const PictureToken *tokens, int32_t count, bool add,
                                  void *residual, cudaStream_t stream) {
    if (count == 0) return cudaSuccess;
    return with_type(from.type, [&](auto r) {
        using R = decltype(r);
        place_tokens<R><<<static_cast<unsigned>(count), kThreads, 0, stream>>>(
            from, part, tokens, add, static_cast<R *>(residual));
        return cudaGetLastError();
    });
}

} // namespace batchllm::cuda
