// How queries and keys of a tower turn: the bias, then the rotation of element i with i + head_dim / 2. For the kernel that turns
// them in memory (rows.cu), and for attention that turns queries as it reads them (attention_sm90.cu): the same bits.
#pragma once

#include "elementwise/element.cuh"

namespace batchllm::cuda {
namespace {

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
    const float4 b = *reinterpret_cast<const float4 *>(bias);
    x[0] += b.x, x[1] += b.y, x[2] += b.z, x[3] += b.w;
}

// Four elements of the first half of a head and those that they turn with. bias: of the first four, or null; the others' is
// `half` behind. angles: of the four, or null.
template <typename T> __device__ __forceinline__ void turn4(T *first, T *second, const float *bias,
                                                            int half, const float2 *angles) {
    float x[kQuad], y[kQuad];
    load4(first, x);
    load4(second, y);
    if (bias != nullptr) {
        add4(bias, x);
        add4(bias + half, y);
    }
    if (angles != nullptr) {
#pragma unroll
        for (int k = 0; k < kQuad; ++k) {
            const float2 angle = angles[k];
            const float turned = x[k] * angle.x - y[k] * angle.y;
            y[k] = y[k] * angle.x + x[k] * angle.y;
            x[k] = turned;
        }
    }
    store4(first, x);
    store4(second, y);
}

} // namespace
} // namespace batchllm::cuda
