// Merges the partials of a query head (normalised O, log-sum-exp in base 2) into its result; shared
// by both families of kernels. Run by one warp; each lane has HeadDim / 32 neighbouring columns.
// Partials are added in slot order, since the order determines the last bits of the result.
#pragma once

#include <cmath>

#include "attention/common.cuh"

namespace batchllm::cuda {

template <int HeadDim> struct HeadResult {
    static constexpr int kEach = HeadDim / 32;
    float top = -INFINITY, sum = 0, o[kEach] = {};

    // lse -inf: an absent part. With Absent its values are ignored; otherwise they must be finite.
    template <bool Absent, int Count> __device__ __forceinline__ void
    add(const float (&lse)[Count], const float (&part)[Count][kEach]) {
        float higher = top;
#pragma unroll
        for (int p = 0; p < Count; ++p) higher = fmaxf(higher, lse[p]);
        if (higher == -INFINITY) return;
        const float old = exp2_approximate(top - higher);
        top = higher;
        sum *= old;
#pragma unroll
        for (int e = 0; e < kEach; ++e) o[e] *= old;
#pragma unroll
        for (int p = 0; p < Count; ++p) {
            if (Absent && lse[p] == -INFINITY) continue;
            const float weight = exp2_approximate(lse[p] - higher);
            sum += weight;
#pragma unroll
            for (int e = 0; e < kEach; ++e) o[e] += weight * part[p][e];
        }
    }

    template <bool Special, typename T> __device__ __forceinline__ void
    write(const AttentionArguments &a, int token, int head, int lane) const {
        const float total = Logits<Special>(a).with_sink(sum, top, -1, head);
        const float scale = total > 0 ? 1.f / total : 0.f;
        auto *out = static_cast<T *>(a.out) + token * a.out_stride + head * HeadDim + lane * kEach;
#pragma unroll
        for (int e = 0; e < kEach; e += 2) {
            *reinterpret_cast<uint32_t *>(out + e) = pack(o[e] * scale, o[e + 1] * scale, T());
        }
    }
};

// This lane's columns of a partial. index: slot * heads + head.
template <int HeadDim> __device__ __forceinline__ void
load_partial(const AttentionArguments &a, int64_t index, int lane, float (&part)[HeadDim / 32]) {
    constexpr int kEach = HeadDim / 32;
    const float *from = a.partial_out + index * HeadDim + lane * kEach;
    if constexpr (kEach == 2) {
        const float2 v = __ldcg(reinterpret_cast<const float2 *>(from));
        part[0] = v.x;
        part[1] = v.y;
    } else {
#pragma unroll
        for (int e = 0; e < kEach; e += 4) {
            const float4 v = __ldcg(reinterpret_cast<const float4 *>(from + e));
            part[e] = v.x;
            part[e + 1] = v.y;
            part[e + 2] = v.z;
            part[e + 3] = v.w;
        }
    }
}

} // namespace batchllm::cuda
