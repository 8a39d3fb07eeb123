// Of the kernel that goes through state-space layers token by token (state_space.cu): a token's inputs, which a block's
// threads make for each other.
#pragma once

#include "recurrent/delta.cuh"
#include "recurrent/state_space.h"

namespace batchllm::cuda::space {

constexpr int kRows = 16; // of S, a thread's
constexpr int kEach = 3;  // channels that a thread convolves, at most

// Heads of 128 keys by 64 values, as in the published models.
struct Published {
    static constexpr bool kWhole = true;
    static constexpr int kKeys = 128, kValues = 64, kThreads = 128, kBlocks = 4;
};
struct General {
    static constexpr bool kWhole = false;
    static constexpr int kKeys = kMostStateKeys, kValues = kMostStateValues, kThreads = 512,
                         kBlocks = 1;
};

// A token's inputs. Zeros beyond a head's dims.
template <typename Shape> struct alignas(16) SpaceToken {
    float query[Shape::kKeys], key[Shape::kKeys], value[Shape::kValues];
    float step, decay;
};

// By every second token.
template <typename Shape> struct SpaceShared {
    SpaceToken<Shape> tokens[2];
    float sums[2][Shape::kThreads / 32][Shape::kValues]; // the warps' parts of S^T q
};

// A head's dims, known where they are the published ones; and a thread's part of S: rows [row, row + kRows), four
// columns from `column` on. kLanes neighbouring threads have the same rows.
template <typename Shape> struct SpacePart {
    int keys, values, lanes, row, column;
    bool any; // whether some of it is within the head

    __device__ explicit SpacePart(const DeltaArguments &a)
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

// The channels that a thread convolves, every blockDim-th of the head's, with their inputs of the last tokens.
template <typename T, typename Shape> struct SpaceChannels {
    float4 weights[kEach];
    float bias[kEach], seen[kEach][kRing]; // the newest token's last
    int channel[kEach];                    // -1: none
    int place[kEach];                      // of a SpaceToken's floats

    __device__ SpaceChannels(const StateSpaceArguments &s, const SpacePart<Shape> &part, int head) {
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

    // Their inputs of the tokens before the item's first, the newest last.
    __device__ __forceinline__ void load_before(const DeltaArguments &a, const StateItem &item,
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
    __device__ __forceinline__ void mix(SpaceToken<Shape> *to) const {
        auto *floats = reinterpret_cast<float *>(to);
#pragma unroll
        for (int e = 0; e < kEach; ++e) {
            if (channel[e] < 0) continue;
            const float4 w = weights[e];
            floats[place[e]] = silu(bias[e] + seen[e][0] * w.x + seen[e][1] * w.y +
                                    seen[e][2] * w.z + seen[e][3] * w.w);
        }
    }
    // Writes the ring of an item of one token, after see(). Where the item stays in its slot, only that token's row:
    // other blocks may still read the others.
    __device__ __forceinline__ void keep(const DeltaArguments &a, const StateItem &item,
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

// What a thread loads of a token while the one before is computed: its channels' newest inputs; the first threads also
// the gate of a result, the last one the head's step.
template <typename T> struct SpaceInput { T newest[kEach], gate, raw; };

template <typename T, typename Shape> __device__ __forceinline__ SpaceInput<T>
load_input(const DeltaArguments &a, const SpaceChannels<T, Shape> &channels,
           const SpacePart<Shape> &part, int64_t token, int head) {
    const T *row = projected_of<T>(a, token);
    const int thread = static_cast<int>(threadIdx.x);
    SpaceInput<T> input;
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
        input.newest[e] = channels.channel[e] < 0 ? from_float<T>(0.0f) : row[channels.channel[e]];
    }
    row += a.channels();
    input.gate = thread < part.values ? row[head * part.values + thread] : from_float<T>(0.0f);
    input.raw = row[a.values_size() + head];
    return input;
}

// A token into shared memory. bias, decay: the head's of DeltaArguments::step and decay.
template <typename T, typename Shape> __device__ __forceinline__ void
make_token(const StateSpaceArguments &s, SpaceChannels<T, Shape> *channels,
           const SpaceInput<T> &input, float bias, float decay, SpaceToken<Shape> *to) {
    float newest[kEach];
#pragma unroll
    for (int e = 0; e < kEach; ++e) newest[e] = to_float(input.newest[e]);
    channels->see(newest);
    channels->mix(to);
    if (threadIdx.x + 1 != blockDim.x) return;
    const float step =
        fminf(fmaxf(softplus(to_float(input.raw) + bias), s.least_step), s.most_step);
    to->step = step;
    to->decay = expf(-expf(decay) * step);
}

} // namespace batchllm::cuda::space
