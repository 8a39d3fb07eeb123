// The kernels of rope.h, for keys and values of the layer's type or in e4m3 (Stored), which have a file each.
// Bound by memory: reads a token's row of the QKV product and writes it, keys and values to their pages.
#pragma once

#include <algorithm>
#include <bit>

#include "attention/attention.h"
#include "elementwise/element.cuh"
#include "elementwise/elementwise.h"
#include "elementwise/quantize.cuh"
#include "elementwise/rope.h"

namespace batchllm::cuda {
namespace {

// Elements [e, e + 8) of a key's row, to their place in its block. inverse: of e4m3, what they are multiplied by.
template <typename Stored> __device__ __forceinline__ void
store_in_block(Stored *block, int e, int key, int padded_dim, const float (&x)[8], float inverse) {
    if constexpr (sizeof(Stored) == 4) {
        store8(block + key * padded_dim + e, x);
    } else if constexpr (sizeof(Stored) == 2) {
        store8(block + place_in_block(key, e, 2), x);
    } else {
        store8_e4m3(block + place_in_block(key, e, 1), x, inverse);
    }
}
// One over the scale of a KV head's keys or values.
template <typename Stored>
__device__ __forceinline__ float inverse_scale(const RopeArguments &a, bool value, int kv_head) {
    if constexpr (sizeof(Stored) != 1) return 1;
    const float *scales = value ? a.v_scale : a.k_scale;
    return scales == nullptr ? 1 : 1 / scales[kv_head];
}

constexpr int kRopeThreads = 384, kRopeDims = 512; // of the kernel for most models, at most

// Heads that turn whole, half with half, with RMSNorms of each head's queries and keys, and of its values without
// weights, or none: most models. A block is a
// token, or as many of its heads as it has threads for; 2^lane_bits threads are a head, each with eight
// elements of its first half and the eight that they are rotated with. Slot, row, bias and angles are asked
// for at once.
template <typename T, typename Stored> __global__ void __launch_bounds__(kRopeThreads, 3)
    rope(const __grid_constant__ RopeArguments a, int lane_bits) {
    // Two angles a vector; a fifth one makes the lanes' four lie in different banks.
    __shared__ float4 angles[kRopeDims / 2 / kVector][kVector / 2 + 1];
    __shared__ int32_t shared_slot;
    const int token = static_cast<int>(blockIdx.x);
    const int half = a.head_dim / 2;
    const int heads = a.heads + 2 * a.kv_heads;
    const int task = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
    const int head = task >> lane_bits, lane = task & ((1 << lane_bits) - 1);
    const int e = lane * kVector;
    const bool active = head < heads && e < half;
    // By one thread: a load of the whole block's would be waited for at once, as its result is kept once a warp.
    int32_t slot = 0;
    if (threadIdx.x == 0) slot = a.slots[token];
    const unsigned pair = threadIdx.x; // of angles; a block has threads for all
    const bool has_pair = static_cast<int>(pair) < half / 2;
    float4 two = {};
    if (has_pair) two = reinterpret_cast<const float4 *>(a.table + int64_t{token} * half)[pair];
    T *from = static_cast<T *>(a.qkv) +
              (int64_t{token} * (heads + a.more_heads) + head) * a.padded_dim + e;
    float x[8] = {}, y[8] = {};
    if (active) {
        const Packed8<T> first = load_past_l1(from), second = load_past_l1(from + half);
        float b[2][8] = {};
        if (a.bias != nullptr) {
            const float *bias = a.bias + head * a.padded_dim + e;
            load8(bias, b[0]);
            load8(bias + half, b[1]);
        }
        widen(first, x);
        widen(second, y);
#pragma unroll
        for (int k = 0; k < 8; ++k) x[k] += b[0][k], y[k] += b[1][k];
    }
    const bool value = head >= a.heads + a.kv_heads;
    if (a.q_norm) { // with k_norm
        float sum = 0;
#pragma unroll
        for (int k = 0; k < 8; ++k) sum += x[k] * x[k] + y[k] * y[k];
        for (int bit = lane_bits - 1; bit >= 0; --bit) sum += __shfl_xor_sync(~0u, sum, 1 << bit);
        const float mean = sum / static_cast<float>(a.head_dim);
        if (value && a.v_norm) {
            const float scale = rsqrtf(mean + a.v_norm.epsilon);
#pragma unroll
            for (int k = 0; k < 8; ++k) x[k] *= scale, y[k] *= scale;
        }
        if (active && !value) {
            const float scale = rsqrtf(mean + a.q_norm.epsilon);
            const float *weight = (head < a.heads ? a.q_norm.weight : a.k_norm.weight) + e;
            float w[8];
            load8(weight, w);
#pragma unroll
            for (int k = 0; k < 8; ++k) x[k] *= scale * w[k];
            load8(weight + half, w);
#pragma unroll
            for (int k = 0; k < 8; ++k) y[k] *= scale * w[k];
        }
    }
    if (has_pair) angles[pair / (kVector / 2)][pair % (kVector / 2)] = two;
    if (threadIdx.x == 0) shared_slot = slot;
    __syncthreads();
    slot = shared_slot;
    if (slot < 0 || !active) return;
    if (!value) {
#pragma unroll
        for (int k = 0; k < 8; k += 2) {
            const float4 angle = angles[lane][k / 2];
            const float rotated[2] = {x[k] * angle.x - y[k] * angle.y,
                                      x[k + 1] * angle.z - y[k + 1] * angle.w};
            y[k] = y[k] * angle.x + x[k] * angle.y;
            y[k + 1] = y[k + 1] * angle.z + x[k + 1] * angle.w;
            x[k] = rotated[0], x[k + 1] = rotated[1];
        }
    }
    if (head < a.heads) {
        store8(from, x);
        store8(from + half, y);
        return;
    }
    const int key = slot % kPageKeys;
    const int64_t block = int64_t{kPageKeys} * a.padded_dim;
    const int kv_head = head - a.heads - (value ? a.kv_heads : 0);
    Stored *to = static_cast<Stored *>(a.kv) +
                 ((int64_t{slot / kPageKeys} * a.kv_heads + kv_head) * 2 + (value ? 1 : 0)) * block;
    const float inverse = inverse_scale<Stored>(a, value, kv_head);
    store_in_block(to, e, key, a.padded_dim, x, inverse);
    store_in_block(to, e + half, key, a.padded_dim, y, inverse);
}

// ---- Any rotation, any norm ----

constexpr int kTurnThreads = 128, kTurnDims = 256; // dims at most, times Vectors

// Where an angle is in shared memory, so that the lanes of a head, eight apart, read from different banks.
__device__ __forceinline__ int place_of_angle(int i) { return i + i / kVector; }

// Elements [e, e + 8) of a head, with their bias.
template <typename T> __device__ __forceinline__ void
load_head(const RopeArguments &a, const T *row, int head, int e, float (&x)[8]) {
    const int at = head * a.padded_dim + e;
    load8(row + at, x);
    if (a.bias == nullptr) return;
    float bias[8];
    load8(a.bias + at, bias);
#pragma unroll
    for (int k = 0; k < 8; ++k) x[k] += bias[k];
}

// What the norms of all queries and of all keys together multiply by.
template <typename T> __device__ float2 whole_scales(const RopeArguments &a, const T *row) {
    const auto scale_of = [&](float sum, int heads, float epsilon) {
        const float count = static_cast<float>(heads) * static_cast<float>(a.head_dim);
        return rsqrtf(sum / (count * static_cast<float>(a.sharing)) + epsilon);
    };
    if (a.squares != nullptr) {
        const float2 all = a.squares[blockIdx.x];
        return make_float2(scale_of(all.x, a.heads, a.q_norm.epsilon),
                           scale_of(all.y, a.kv_heads, a.k_norm.epsilon));
    }
    float sums[2] = {};
    const int vectors = (a.head_dim + kVector - 1) / kVector;
    for (int i = threadIdx.x; i < (a.heads + a.kv_heads) * vectors; i += kTurnThreads) {
        float x[8], sum = 0;
        const int head = i / vectors;
        load_head(a, row, head, i % vectors * kVector, x);
#pragma unroll
        for (int k = 0; k < 8; ++k) sum += x[k] * x[k]; // zero beyond head_dim
        sums[head < a.heads ? 0 : 1] += sum;
    }
    __shared__ float parts[2][kTurnThreads / 32];
    for (int part = 0; part < 2; ++part) {
        float sum = sums[part];
        for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
        if (threadIdx.x % 32 == 0) parts[part][threadIdx.x / 32] = sum;
    }
    __syncthreads();
    const auto scale = [&](int part, int heads, float epsilon) {
        float sum = 0;
        for (int w = 0; w < kTurnThreads / 32; ++w) sum += parts[part][w];
        return scale_of(sum, heads, epsilon);
    };
    return make_float2(scale(0, a.heads, a.q_norm.epsilon), scale(1, a.kv_heads, a.k_norm.epsilon));
}

// The sum over the `lanes` threads of a head.
__device__ __forceinline__ float head_sum(float x, int lanes) {
    for (int offset = lanes / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
    return x;
}

// x: the thread's part of a head, zero beyond head_dim; all of a warp call this. whole: of the norm of all
// heads together, which is the head's own unless norm_whole.
template <int Vectors>
__device__ __forceinline__ void normalise_head(const RopeArguments &a, int head, int lanes,
                                               int lane, float whole, float (&x)[Vectors][8]) {
    const bool query = head < a.heads, key = !query && head < a.heads + a.kv_heads;
    const DeviceNorm &norm = query ? a.q_norm : key ? a.k_norm : a.v_norm;
    float mean = 0, scale = whole;
    if (!a.norm_whole) {
        float sum = 0;
#pragma unroll
        for (int v = 0; v < Vectors; ++v) {
#pragma unroll
            for (int k = 0; k < 8; ++k) sum += x[v][k];
        }
        sum = head_sum(sum, lanes);
        if (norm.kind == NormKind::layer) mean = sum / static_cast<float>(a.head_dim);
        sum = 0;
#pragma unroll
        for (int v = 0; v < Vectors; ++v) {
#pragma unroll
            for (int k = 0; k < 8; ++k) {
                const bool within = (v * lanes + lane) * kVector + k < a.head_dim;
                sum += within ? (x[v][k] - mean) * (x[v][k] - mean) : 0.0f;
            }
        }
        scale = rsqrtf(head_sum(sum, lanes) / static_cast<float>(a.head_dim) + norm.epsilon);
    }
    if (!norm) return;
    const int first = a.norm_whole ? (query ? head : head - a.heads) * a.padded_dim : 0;
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            const int e = (v * lanes + lane) * kVector + k;
            if (e >= a.head_dim) break;
            x[v][k] = (x[v][k] - mean) * scale;
            if (norm.weight != nullptr) x[v][k] *= norm.weight[first + e];
            if (norm.bias != nullptr) x[v][k] += norm.bias[first + e];
        }
    }
}

// angles: by place_of_angle; staged: room for the head. All of a warp call this; a value's head is left as it is.
template <int Vectors> __device__ __forceinline__ void turn_head(const RopeArguments &a,
                                                                 const float2 *angles, bool turns,
                                                                 int lanes, int lane, float *staged,
                                                                 float (&x)[Vectors][8]) {
    const int half = a.dims / 2;
    float other[Vectors][8]; // what each element turns with
    if (a.pairs) {
#pragma unroll
        for (int v = 0; v < Vectors; ++v) {
#pragma unroll
            for (int k = 0; k < 8; ++k) other[v][k] = x[v][k ^ 1];
        }
    } else {
#pragma unroll
        for (int v = 0; v < Vectors; ++v) store8(staged + (v * lanes + lane) * kVector, x[v]);
        __syncwarp();
#pragma unroll
        for (int v = 0; v < Vectors; ++v) {
#pragma unroll
            for (int k = 0; k < 8; ++k) {
                const int e = (v * lanes + lane) * kVector + k;
                other[v][k] = e < a.dims ? staged[e < half ? e + half : e - half] : 0.0f;
            }
        }
        __syncwarp(); // before the next head is staged
    }
    if (!turns) return;
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            const int e = (v * lanes + lane) * kVector + k;
            if (e >= a.dims) break;
            const bool first = a.pairs ? e % 2 == 0 : e < half;
            const float2 angle = angles[place_of_angle(a.pairs ? e / 2 : first ? e : e - half)];
            const float y = other[v][k];
            x[v][k] = x[v][k] * angle.x + (first ? -y : y) * angle.y;
        }
    }
}

// A block is a token, or as many of its heads as it has threads for; `lanes` threads (a power of two) are a
// head, each with Vectors times eight of its elements. Slot, angles and the first heads are asked for at once.
template <typename T, typename Stored, int Vectors>
__global__ void __launch_bounds__(kTurnThreads, Vectors == 1 ? 8 : 4)
    turn(const __grid_constant__ RopeArguments a, int lanes) {
    __shared__ __align__(16) float staged[kTurnThreads * Vectors * kVector];
    __shared__ float2 angles[Vectors * (kTurnDims / 2 + kTurnDims / 2 / kVector)];
    static_assert(kTurnDims / 2 == kTurnThreads); // of which a thread brings one or two
    __shared__ int32_t shared_slot;
    const int token = blockIdx.x;
    const int angle_count = a.table != nullptr ? a.dims / 2 : 0;
    int32_t slot = 0; // as in the kernel above
    if (threadIdx.x == 0) slot = a.slots[token];
    float2 own_angles[Vectors] = {};
#pragma unroll
    for (int i = 0; i < Vectors; ++i) {
        const int angle = i * kTurnThreads + static_cast<int>(threadIdx.x);
        if (angle < angle_count) own_angles[i] = a.table[int64_t{token} * angle_count + angle];
    }
    const int heads = a.heads + 2 * a.kv_heads;
    const int lane = threadIdx.x % lanes, group = threadIdx.x / lanes;
    T *row = static_cast<T *>(a.qkv) + int64_t{token} * (heads + a.more_heads) * a.padded_dim;
    float query_scale = 1;
    if (a.long_scale != 0) {
        const int periods = (a.positions[token] + a.long_shift) / a.long_period;
        query_scale += a.long_scale * logf(static_cast<float>(1 + periods));
    }
    float2 whole = {};
    if (a.norm_whole) whole = whole_scales(a, row);
    const int64_t block = int64_t{kPageKeys} * a.padded_dim;
    const int at_once = kTurnThreads / lanes, begin = static_cast<int>(blockIdx.y) * at_once;
    for (int first = begin; first < heads; first += static_cast<int>(gridDim.y) * at_once) {
        const int head = first + group;
        const bool value = head >= a.heads + a.kv_heads;
        float x[Vectors][8] = {};
#pragma unroll
        for (int v = 0; v < Vectors; ++v) {
            const int e = (v * lanes + lane) * kVector;
            if (head < heads && e < a.head_dim) load_head(a, row, head, e, x[v]);
        }
        if (first == begin) {
#pragma unroll
            for (int i = 0; i < Vectors; ++i) {
                const int angle = i * kTurnThreads + static_cast<int>(threadIdx.x);
                if (angle < angle_count) angles[place_of_angle(angle)] = own_angles[i];
            }
            if (threadIdx.x == 0) shared_slot = slot;
            __syncthreads();
            slot = shared_slot;
            if (slot < 0) return;
        }
        const bool norms = a.q_norm || a.k_norm || a.v_norm;
        if (norms && !a.norm_turned) {
            normalise_head(a, head, lanes, lane, head < a.heads ? whole.x : whole.y, x);
        }
        if (a.table != nullptr) {
            turn_head(a, angles, !value, lanes, lane, staged + group * lanes * Vectors * kVector,
                      x);
        }
        if (norms && a.norm_turned) normalise_head(a, head, lanes, lane, 1, x);
        const int kv_head = a.kv_heads > 0 ? (head - a.heads) % a.kv_heads : 0;
        Stored *to =
            static_cast<Stored *>(a.kv) +
            ((int64_t{slot / kPageKeys} * a.kv_heads + kv_head) * 2 + (value ? 1 : 0)) * block;
        const float inverse =
            head < a.heads || head >= heads ? 1 : inverse_scale<Stored>(a, value, kv_head);
#pragma unroll
        for (int v = 0; v < Vectors; ++v) {
            const int e = (v * lanes + lane) * kVector;
            if (head >= heads || e >= a.head_dim) continue;
            if (head < a.heads) {
#pragma unroll
                for (int k = 0; k < 8; ++k) x[v][k] *= query_scale;
                store8(row + head * a.padded_dim + e, x[v]);
            } else {
                store_in_block(to, e, slot % kPageKeys, a.padded_dim, x[v], inverse);
            }
        }
    }
}

// What the kernel for most models computes.
bool is_common(const RopeArguments &a) {
    const bool norms = a.q_norm.is_plain_rms() && a.k_norm.is_plain_rms() && !a.norm_whole &&
                       !a.norm_turned && a.q_norm.epsilon == a.k_norm.epsilon;
    return a.table != nullptr && a.long_scale == 0 && !a.pairs && a.dims == a.head_dim &&
           a.head_dim % (2 * kVector) == 0 && a.head_dim <= kRopeDims && a.kv_heads > 0 &&
           (norms || (!a.q_norm && !a.k_norm)) &&
           (!a.v_norm || (norms && a.v_norm.kind == NormKind::rms && a.v_norm.weight == nullptr &&
                          a.v_norm.bias == nullptr));
}

int lanes_for(int elements) {
    int lanes = 1;
    while (lanes * kVector < elements) lanes *= 2;
    return lanes;
}

template <typename T, typename Stored>
cudaError_t launch_stored(const RopeArguments &a, cudaStream_t stream) {
    const auto tokens = static_cast<unsigned>(a.tokens);
    const int heads = a.heads + 2 * a.kv_heads;
    if (is_common(a)) {
        const int lanes = lanes_for(a.head_dim / 2);
        const int tasks = heads * lanes;
        const int parts = (tasks + kRopeThreads - 1) / kRopeThreads;
        const int pairs = (a.head_dim / 4 + 31) / 32 * 32; // of angles, one a thread
        const int threads = std::max(pairs, (tasks + parts * 32 - 1) / (parts * 32) * 32);
        rope<T, Stored><<<dim3(tokens, static_cast<unsigned>(parts)), threads, 0, stream>>>(
            a, std::countr_zero(static_cast<unsigned>(lanes)));
        return cudaGetLastError();
    }
    const int lanes = lanes_for(a.head_dim) / (a.head_dim <= kTurnDims ? 1 : 2);
    // The norm of all heads together is made by one block.
    const int parts = a.norm_whole ? 1 : (heads * lanes + kTurnThreads - 1) / kTurnThreads;
    const dim3 grid(tokens, static_cast<unsigned>(parts));
    if (a.head_dim <= kTurnDims) {
        turn<T, Stored, 1><<<grid, kTurnThreads, 0, stream>>>(a, lanes);
    } else {
        turn<T, Stored, 2><<<grid, kTurnThreads, 0, stream>>>(a, lanes);
    }
    return cudaGetLastError();
}

} // namespace
} // namespace batchllm::cuda
