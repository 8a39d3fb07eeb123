// Before the rule token by token: the convolution of q, k and v, the lengths of q and k, and the rings.
//
// A warp has a head of q, k or v and one item after another, a lane four channels. It goes through an item's tokens from
// the last to the first, since what it makes of a token takes the place of what the next ones are made from.
#include "recurrent/convolve.cuh"
#include "recurrent/steps.cuh"

#include <algorithm>

namespace batchllm::cuda {
namespace steps {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int kBlocks = 8; // on an SM, of items of one token

template <typename T, bool kWhole> struct InputsWarp {
    int channel, count, dim;
    bool query, value;
    float4 weights[4];

    __device__ __forceinline__ InputsWarp(const DeltaArguments &a, int head)
        : query(head < a.key_heads), value(head >= 2 * a.key_heads) {
        const int lane = static_cast<int>(threadIdx.x) % 32;
        dim = kWhole ? kMostDeltaDim : value ? a.value_dim : a.key_dim;
        channel =
            4 * lane + (value ? 2 * a.keys_size() + (head - 2 * a.key_heads) * dim : head * dim);
        count = dim - 4 * lane;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            weights[e] = float4{};
            if (kWhole || e < count) {
                weights[e] = reinterpret_cast<const float4 *>(a.convolution)[channel + e];
            }
        }
    }
    // What token t of the item is made from, or one of the last before it; zeros where there is none.
    __device__ __forceinline__ Four<T> load(const DeltaArguments &a, const StateItem &item,
                                            int t) const {
        if (t <= -kRing || item.position + t < 0) return {};
        return load_four<kWhole>(seen_row<T>(a, item, t, 0) + channel, count);
    }
    __device__ __forceinline__ void make(const DeltaArguments &a, int64_t token,
                                         const Four<T> (&seen)[kRing]) const {
        float x[4], squares = 0;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const T inputs[kRing] = {seen[0][e], seen[1][e], seen[2][e], seen[3][e]};
            x[e] = convolved(weights[e], inputs);
            squares = fmaf(x[e], x[e], squares);
        }
        if (!value) {
            const float scale = unit_scale(warp_sum(squares), dim, query);
#pragma unroll
            for (float &each : x) each *= scale;
        }
        Mixed<T, kWhole> mixed;
        mixed.set(x);
        mixed.store(a, token, channel, count);
    }
    // The ring behind the item. newest: what its last tokens are made from, the newest last.
    __device__ __forceinline__ void keep(const DeltaArguments &a, const StateItem &item,
                                         const Four<T> (&newest)[kRing]) const {
#pragma unroll
        for (int back = 0; back < kRing; ++back) {
            const int t = item.token_count - 1 - back, position = item.position + t;
            if (position < 0 || (t < 0 && item.from == item.state)) break;
            T *row =
                ring_of<T>(a, item.state) + static_cast<unsigned>(position) % kRing * a.channels();
            store_four<kWhole>(row + channel, count, newest[kRing - 1 - back]);
        }
    }
    __device__ __forceinline__ void run_one(const DeltaArguments &a, const StateItem &item) const {
        Four<T> seen[kRing];
#pragma unroll
        for (int w = 0; w < kRing; ++w) seen[w] = load(a, item, w + 1 - kRing);
        make(a, item.token_begin, seen);
        keep(a, item, seen);
    }
    __device__ __forceinline__ void run(const DeltaArguments &a, const StateItem &item) const {
        const int last = item.token_count - 1;
        Four<T> seen[2 * kRing]; // up to token t
#pragma unroll
        for (int i = 0; i < 2 * kRing; ++i) seen[i] = load(a, item, last + i + 1 - 2 * kRing);
        Four<T> newest[kRing];
#pragma unroll
        for (int w = 0; w < kRing; ++w) newest[w] = seen[kRing + w];
        for (int t = last; t >= 0; t -= kRing) {
            Four<T> next[kRing];
#pragma unroll
            for (int w = 0; w < kRing; ++w) next[w] = load(a, item, t + w + 1 - 3 * kRing);
#pragma unroll
            for (int back = 0; back < kRing && back <= t; ++back) {
                const Four<T> inputs[kRing] = {seen[4 - back], seen[5 - back], seen[6 - back],
                                               seen[7 - back]};
                make(a, int64_t{item.token_begin} + t - back, inputs);
            }
#pragma unroll
            for (int w = 0; w < kRing; ++w) seen[kRing + w] = seen[w], seen[w] = next[w];
        }
        keep(a, item, newest);
    }
};

// kOne: items of one token, else of several.
template <typename T, bool kWhole, bool kOne>
__global__ void __launch_bounds__(kThreads, kOne ? kBlocks : 1)
    delta_steps_inputs(const __grid_constant__ DeltaArguments a) {
    let_next_launch_begin();
    const int head = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
    if (head >= 2 * a.key_heads + a.value_heads) return;
    const InputsWarp<T, kWhole> warp(a, head);
    const StateLevel level = *a.level;
    const int end = kOne ? level.several : level.chunked;
    int i = (kOne ? level.begin : level.several) + static_cast<int>(blockIdx.y);
    for (; i < end; i += gridDim.y) {
        if constexpr (kOne) {
            warp.run_one(a, a.items[i]);
        } else {
            warp.run(a, a.items[i]);
        }
    }
}

template <typename T, bool kWhole>
cudaError_t launch_inputs(const DeltaArguments &a, bool several, cudaStream_t stream) {
    const int heads = 2 * a.key_heads + a.value_heads, blocks = (heads + kWarps - 1) / kWarps;
    const int at_once = (std::max(a.sms, 1) * kBlocks + blocks - 1) / blocks;
    const dim3 grid(static_cast<unsigned>(blocks),
                    static_cast<unsigned>(std::min(a.most_items, at_once)));
    if (several) {
        delta_steps_inputs<T, kWhole, false><<<grid, kThreads, 0, stream>>>(a);
    } else {
        delta_steps_inputs<T, kWhole, true><<<grid, kThreads, 0, stream>>>(a);
    }
    return cudaGetLastError();
}

constexpr int kRingThreads = 256;

template <typename T>
__global__ void delta_rings(const __grid_constant__ DeltaArguments a, bool chunked) {
    const StateLevel level = *a.level;
    const int channel = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
    if (channel >= a.channels()) return;
    for (int i = (chunked ? level.chunked : level.several) + static_cast<int>(blockIdx.x);
         i < level.end; i += gridDim.x) {
        const StateItem item = a.items[i];
        T *ring = ring_of<T>(a, item.state);
        for (int back = 0; back < kRing; ++back) {
            const int t = item.token_count - 1 - back, position = item.position + t;
            if (position < 0 || (t < 0 && item.from == item.state)) break;
            ring[position % kRing * a.channels() + channel] =
                convolution_input<T>(a, item, t, channel);
        }
    }
}

} // namespace
} // namespace steps

cudaError_t launch_delta_steps_inputs(const DeltaArguments &a, bool several, cudaStream_t stream) {
    return with_type(a.element, [&](auto t) {
        using T = decltype(t);
        return steps::whole(a) ? steps::launch_inputs<T, true>(a, several, stream)
                               : steps::launch_inputs<T, false>(a, several, stream);
    });
}

cudaError_t launch_delta_rings(const DeltaArguments &a, bool chunked, cudaStream_t stream) {
    if (a.most_items == 0) return cudaSuccess;
    const dim3 grid(
        static_cast<unsigned>(std::min(a.most_items, 64)),
        static_cast<unsigned>((a.channels() + steps::kRingThreads - 1) / steps::kRingThreads));
    return with_type(a.element, [&](auto t) {
        steps::delta_rings<decltype(t)><<<grid, steps::kRingThreads, 0, stream>>>(a, chunked);
        return cudaGetLastError();
    });
}

} // namespace batchllm::cuda
