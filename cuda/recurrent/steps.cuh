// Of the kernel that goes token by token (steps.cu): a block's part of S, and a token's inputs, which its threads make for
// each other.
#pragma once

#include "recurrent/delta.cuh"
#include "recurrent/state_space.h"

namespace batchllm::cuda::steps {

constexpr int kRows = 16; // of S, a thread's

// Heads of the sizes that all published models have: of delta nets 128 keys by 128 values, of Mamba-2 128 by 64. And
// others. kEach: channels that a thread convolves, at most; kBlocks: of an SM.
template <bool kDelta> struct Published {
    static constexpr bool kWhole = true;
    static constexpr int kKeys = 128, kValues = kDelta ? 128 : 64, kThreads = kDelta ? 256 : 128,
                         kEach = kDelta ? 2 : 3, kBlocks = kDelta ? 2 : 4;
};
struct General {
    static constexpr bool kWhole = false;
    static constexpr int kKeys = kMostStateKeys, kValues = kMostStateValues, kThreads = 512,
                         kEach = 3, kBlocks = 1;
};

// Four neighbours.
template <typename T> struct alignas(4 * sizeof(T)) Four { T x[4]; };

__device__ __forceinline__ void add_scaled(float4 *to, const float4 &x, float scale) {
    to->x = fmaf(x.x, scale, to->x), to->y = fmaf(x.y, scale, to->y);
    to->z = fmaf(x.z, scale, to->z), to->w = fmaf(x.w, scale, to->w);
}
__device__ __forceinline__ float4 scaled(const float4 &x, float scale) {
    return make_float4(x.x * scale, x.y * scale, x.z * scale, x.w * scale);
}

// A token's inputs. Zeros beyond a head's dims.
template <typename Shape> struct alignas(16) StepToken {
    float query[Shape::kKeys], key[Shape::kKeys], value[Shape::kValues];
    float rate, decay; // rate: of a state-space layer the step
};

// Of a warp's rows the parts of S^T q, and of what the delta rule needs beside: S^T k, q . q, k . k, q . k.
template <typename Shape, bool kDelta> struct alignas(16) WarpSums { float found[Shape::kValues]; };
template <typename Shape> struct alignas(16) WarpSums<Shape, true> {
    float found[Shape::kValues], known[Shape::kValues];
    float4 products; // the last unused
};

// By turns: a token is read until the one after the next is made.
template <typename Shape, bool kDelta> struct StepShared {
    StepToken<Shape> tokens[3];
    WarpSums<Shape, kDelta> sums[2][Shape::kThreads / 32];
};

// A head's dims, known where they are the published ones; and a thread's part of S: rows [row, row + kRows), four
// columns from `column` on. `lanes` neighbouring threads have the same rows.
template <typename Shape> struct StepPart {
    int keys, values, lanes, row, column;
    bool any; // some of it is there

    __device__ explicit StepPart(const DeltaArguments &a)
        : keys(Shape::kWhole ? Shape::kKeys : a.key_dim),
          values(Shape::kWhole ? Shape::kValues : a.value_dim), lanes(Shape::kValues / 4) {
        while (!Shape::kWhole && lanes / 2 * 4 >= values) lanes /= 2;
        row = static_cast<int>(threadIdx.x) / lanes * kRows;
        column = static_cast<int>(threadIdx.x) % lanes * 4;
        any = Shape::kWhole || (row < keys && column < values);
    }
    __device__ __forceinline__ bool has(int r) const {
        return Shape::kWhole || (any && row + r < keys);
    }
};

// The channels that a thread convolves, every blockDim-th of the head's, with what they saw of the last tokens.
template <typename T, typename Shape> struct StepChannels {
    static constexpr int kEach = Shape::kEach;
    float4 weights[kEach];
    float bias[kEach], seen[kEach][kRing]; // the newest token's last
    int channel[kEach];                    // -1: none
    int place[kEach];                      // of a StepToken's floats

    __device__ StepChannels(const StateSpaceArguments &s, const StepPart<Shape> &part, int head) {
        const DeltaArguments &a = s.delta;
        const int key_head = head / (a.value_heads / a.key_heads);
#pragma unroll
        for (int e = 0; e < kEach; ++e) {
            int at = static_cast<int>(threadIdx.x + e * blockDim.x);
            channel[e] = -1;
            if (at < 2 * part.keys) {
                const int which = at / part.keys; // q or k
                at -= which * part.keys;
                channel[e] = which * a.keys_size() + key_head * part.keys + at;
                place[e] = which * Shape::kKeys + at;
            } else if (at < 2 * part.keys + part.values) {
                at -= 2 * part.keys;
                channel[e] = 2 * a.keys_size() + head * part.values + at;
                place[e] = 2 * Shape::kKeys + at;
            }
            if (channel[e] < 0) continue;
            weights[e] = reinterpret_cast<const float4 *>(a.convolution)[channel[e]];
            bias[e] = s.bias == nullptr ? 0.0f : s.bias[channel[e]];
        }
    }

    // What they see of the tokens before the item's first, the newest last.
    __device__ __forceinline__ void load_before(const DeltaArguments &a, const DeltaItem &item,
                                                T (&before)[kEach][kRing - 1]) const {
#pragma unroll
        for (int e = 0; e < kEach; ++e) {
#pragma unroll
            for (int w = 0; w + 1 < kRing; ++w) {
                before[e][w] = from_float<T>(0.0f);
                if (channel[e] < 0 || item.position + w < kRing - 1) continue;
                before[e][w] = convolution_input<T>(a, item, w + 1 - kRing, channel[e]);
            }
        }
    }
    __device__ __forceinline__ void begin(const T (&before)[kEach][kRing - 1]) {
#pragma unroll
        for (int e = 0; e < kEach; ++e) {
#pragma unroll
            for (int w = 0; w + 1 < kRing; ++w) seen[e][w + 1] = to_float(before[e][w]);
        }
    }
    __device__ __forceinline__ void see(const float (&newest)[kEach]) {
#pragma unroll
        for (int e = 0; e < kEach; ++e) {
#pragma unroll
            for (int w = 0; w + 1 < kRing; ++w) seen[e][w] = seen[e][w + 1];
            seen[e][kRing - 1] = newest[e];
        }
    }
    __device__ __forceinline__ void mix(StepToken<Shape> *to) const {
        auto *floats = reinterpret_cast<float *>(to);
#pragma unroll
        for (int e = 0; e < kEach; ++e) {
            if (channel[e] < 0) continue;
            const float4 w = weights[e];
            floats[place[e]] = silu(bias[e] + seen[e][0] * w.x + seen[e][1] * w.y +
                                    seen[e][2] * w.z + seen[e][3] * w.w);
        }
    }
    // The rows that the item's next token will see, of an item of one token, which has been seen. Rows of one slot that
    // other blocks still read are not among those written.
    __device__ __forceinline__ void keep(const DeltaArguments &a, const DeltaItem &item,
                                         int head) const {
        T *ring = ring_of<T>(a, item.state);
        const bool keeps_keys = head % (a.value_heads / a.key_heads) == 0;
        const int back = item.from == item.state ? 1 : kRing;
#pragma unroll
        for (int e = 0; e < kEach; ++e) {
            if (channel[e] < 0 || (channel[e] < 2 * a.keys_size() && !keeps_keys)) continue;
#pragma unroll
            for (int i = 0; i < kRing; ++i) {
                if (i >= back || item.position < i) break;
                ring[int64_t{(item.position - i) % kRing} * a.channels() + channel[e]] =
                    from_float<T>(seen[e][kRing - 1 - i]);
            }
        }
    }
};

// What a thread loads of a token while another one is computed: its channels' newest inputs; of a state-space layer the
// first threads the gates of their results; the last what rate and decay are made of.
template <typename T, int kEach> struct StepInputs { T newest[kEach], gate, raw[2]; };

template <bool kDelta, typename T, typename Shape>
__device__ __forceinline__ StepInputs<T, Shape::kEach>
load_inputs(const DeltaArguments &a, const StepChannels<T, Shape> &channels,
            const StepPart<Shape> &part, int64_t token, int head) {
    const T *row = projected_of<T>(a, token);
    const int thread = static_cast<int>(threadIdx.x);
    StepInputs<T, Shape::kEach> inputs;
#pragma unroll
    for (int e = 0; e < Shape::kEach; ++e) {
        inputs.newest[e] = channels.channel[e] < 0 ? from_float<T>(0.0f) : row[channels.channel[e]];
    }
    row += a.channels();
    inputs.gate = from_float<T>(0.0f);
    if (!kDelta && thread < part.values) inputs.gate = row[head * part.values + thread];
    row += a.values_size() + head;
    inputs.raw[0] = row[0];
    inputs.raw[1] = kDelta ? row[a.value_heads] : from_float<T>(0.0f);
    return inputs;
}

// A token into shared memory. bias, decay: the head's of DeltaArguments::step and decay.
template <bool kDelta, typename T, typename Shape>
__device__ __forceinline__ void make_token(const StateSpaceArguments &s,
                                           StepChannels<T, Shape> *channels,
                                           const StepInputs<T, Shape::kEach> &inputs, float bias,
                                           float decay, StepToken<Shape> *to) {
    float newest[Shape::kEach];
#pragma unroll
    for (int e = 0; e < Shape::kEach; ++e) newest[e] = to_float(inputs.newest[e]);
    channels->see(newest);
    channels->mix(to);
    if (threadIdx.x + 1 != blockDim.x) return;
    if (kDelta) {
        const DeltaGates gates =
            gates_of(to_float(inputs.raw[0]), to_float(inputs.raw[1]), bias, decay);
        to->rate = gates.rate;
        to->decay = expf(gates.log_decay);
        return;
    }
    const float step =
        fminf(fmaxf(softplus(to_float(inputs.raw[0]) + bias), s.least_step), s.most_step);
    to->rate = step;
    to->decay = expf(-expf(decay) * step);
}

} // namespace batchllm::cuda::steps
