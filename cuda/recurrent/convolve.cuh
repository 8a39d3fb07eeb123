// The convolution before the delta rule, of kEach neighbouring channels in a lane, token after token; and what q and k
// are multiplied by to be of length 1. What calls this is to be bound by memory, not by instructions, hence the
// approximate silu.
#pragma once

#include "recurrent/delta.cuh"

namespace batchllm::cuda {

template <int kEach> struct Convolution {
    float weights[kEach][kRing];
    float seen[kRing][kEach] = {}; // the newest token last

    __device__ __forceinline__ Convolution() {}
    template <typename Load> __device__ __forceinline__ explicit Convolution(const Load &from) {
        load(from);
    }
    // from(e): a channel's weights
    template <typename Load> __device__ __forceinline__ void load(const Load &from) {
#pragma unroll
        for (int e = 0; e < kEach; ++e) {
            const float4 w = from(e);
            weights[e][0] = w.x, weights[e][1] = w.y, weights[e][2] = w.z, weights[e][3] = w.w;
        }
    }
    __device__ __forceinline__ void see(const float (&newest)[kEach]) {
#pragma unroll
        for (int e = 0; e < kEach; ++e) {
#pragma unroll
            for (int w = 0; w + 1 < kRing; ++w) seen[w][e] = seen[w + 1][e];
            seen[kRing - 1][e] = newest[e];
        }
    }
    // Of the newest token; returns the sum of their squares.
    __device__ __forceinline__ float mix(float (&x)[kEach]) const {
        float squares = 0;
#pragma unroll
        for (int e = 0; e < kEach; ++e) {
            float sum = 0;
#pragma unroll
            for (int w = 0; w < kRing; ++w) sum += seen[w][e] * weights[e][w];
            x[e] = silu_approximate(sum);
            squares += x[e] * x[e];
        }
        return squares;
    }
};

// squares: the sum over the head. Queries are divided by the root of their dimension as well.
__device__ __forceinline__ float unit_scale(float squares, int dim, bool query) {
    float scale; // no denormal to be seen to
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(scale) : "f"(squares + 1e-6f));
    return query ? scale * rsqrtf(static_cast<float>(dim)) : scale;
}

} // namespace batchllm::cuda
