#include "tower/rows.h"

#include <algorithm>

#include "elementwise/element.cuh"
#include "elementwise/elementwise.h"
#include "tower/turn.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kThreads = 128, kTurnThreads = 256, kNormThreads = 256;

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

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
    return x;
}

template <typename R, typename T, int Vectors> __global__ void __launch_bounds__(kNormThreads)
    norm_rows(const __grid_constant__ TowerNormArguments a) {
    const int row =
        static_cast<int>(blockIdx.x) * (kNormThreads / 32) + static_cast<int>(threadIdx.x) / 32;
    if (row >= a.count) return;
    const R *from = static_cast<const R *>(a.x) + int64_t{row} * a.hidden;
    T *out = static_cast<T *>(a.out) + int64_t{row} * a.hidden;
    const auto begin = [](int v) {
        return (v * 32 + static_cast<int>(threadIdx.x) % 32) * kVector;
    };
    Packed8<R> packed[Vectors] = {};
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
        if (begin(v) < a.hidden) packed[v] = load_past_l1(from + begin(v));
    }
    float x[Vectors][8], mean = 0, sum = 0;
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
        widen(packed[v], x[v]); // zeros beyond the row
#pragma unroll
        for (int k = 0; k < 8; ++k) sum += x[v][k];
    }
    const auto count = static_cast<float>(a.hidden);
    if (a.norm.kind == NormKind::layer) mean = warp_sum(sum) / count;
    sum = 0;
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
        if (begin(v) >= a.hidden) break;
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            x[v][k] -= mean;
            sum += x[v][k] * x[v][k];
        }
    }
    const float scale = rsqrtf(warp_sum(sum) / count + a.norm.epsilon);
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
        const int i = begin(v);
        if (i >= a.hidden) break;
        float weight[8], bias[8] = {};
#pragma unroll
        for (float &one : weight) one = 1;
        if (a.norm.weight != nullptr) load8(a.norm.weight + i, weight);
        if (a.norm.bias != nullptr) load8(a.norm.bias + i, bias);
#pragma unroll
        for (int k = 0; k < 8; ++k) x[v][k] = x[v][k] * scale * weight[k] + bias[k];
        store8(out + i, x[v]);
    }
}

// A thread takes four elements of the first half of a head and what they turn with.
template <typename T> __global__ void __launch_bounds__(kTurnThreads)
    turn(const TowerTurnArguments a) {
    const int half = a.head_dim / 2, quads = half / kQuad, width = a.heads * a.head_dim;
    const int first = a.keys_alone ? 1 : 0, heads = (2 - first) * a.heads;
    const int i = static_cast<int>(blockIdx.x) * kTurnThreads + static_cast<int>(threadIdx.x);
    const int patch = i / (heads * quads), part = i - patch * (heads * quads);
    if (patch >= a.count) return;
    const int e = part % quads * kQuad, at = first * width + part / quads * a.head_dim + e;
    T *to = static_cast<T *>(a.qkv) + int64_t{patch} * 3 * width + at;
    turn4(to, to + half, a.bias == nullptr ? nullptr : a.bias + at, half,
          a.angles == nullptr ? nullptr : a.angles + int64_t{patch} * half + e);
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

cudaError_t launch_tower_norm(const TowerNormArguments &a, cudaStream_t stream) {
    if (a.count == 0) return cudaSuccess;
    if (a.hidden % kVector != 0 || a.hidden > kMostTowerNormed || !a.norm) {
        return cudaErrorInvalidValue;
    }
    constexpr int rows = kNormThreads / 32;
    const auto blocks = static_cast<unsigned>((a.count + rows - 1) / rows);
    return with_type(a.type, [&](auto r) {
        return with_type(a.element, [&](auto t) {
            using R = decltype(r);
            using T = decltype(t);
            if (a.hidden <= 1024) {
                norm_rows<R, T, 4><<<blocks, kNormThreads, 0, stream>>>(a);
            } else if (a.hidden <= 1280) {
                norm_rows<R, T, 5><<<blocks, kNormThreads, 0, stream>>>(a);
            } else {
                norm_rows<R, T, 8><<<blocks, kNormThreads, 0, stream>>>(a);
            }
            return cudaGetLastError();
        });
    });
}

cudaError_t launch_tower_turn(const TowerTurnArguments &a, cudaStream_t stream) {
    if (a.count == 0 || (a.bias == nullptr && a.angles == nullptr)) return cudaSuccess;
    return with_type(a.element, [&](auto t) {
        const int64_t quads =
            int64_t{a.count} * (a.keys_alone ? 1 : 2) * a.heads * (a.head_dim / 2 / kQuad);
        if (quads > INT32_MAX - kTurnThreads) return cudaErrorInvalidValue;
        turn<decltype(t)><<<grid_for(quads, kTurnThreads), kTurnThreads, 0, stream>>>(a);
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
